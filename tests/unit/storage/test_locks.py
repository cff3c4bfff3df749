"""Locks on files: alone or shared, gone with their process, and with the file where that is removed."""

import errno
import fcntl
import subprocess
import sys
import threading

import pytest

from tokenfeed.errors import StateError, WriteError
from tokenfeed.preparation import workplace
from tokenfeed.preparation.workplace import Workplace
from tokenfeed.storage.locks import FileLock


def test_one_alone_or_any_number_beside_each_other(tmp_path):
    for path in (tmp_path / "file", tmp_path):
        first, second, third = (FileLock(path) for _ in range(3))
        assert first.take(exclusive=True)
        assert not second.take(exclusive=True)
        assert not second.take(exclusive=False)
        assert first.take(exclusive=False)
        assert second.take(exclusive=False)
        assert third.take(exclusive=False)
        second.release()
        assert not first.take(exclusive=True)
        assert third.take(exclusive=True)
        del third  # a lock that nobody has any more is free
        assert first.take(exclusive=True, patience=0.1)


def test_a_file_that_is_removed_is_made_again(tmp_path):
    path = tmp_path / "file"
    first, second = FileLock(path), FileLock(path)
    first.take(exclusive=True)
    releasing = threading.Timer(0.2, lambda: first.release(remove=True))
    releasing.start()
    assert second.take(exclusive=True, patience=10)  # it had opened the file that was removed
    releasing.join()
    assert second.is_current()
    path.unlink()
    assert not second.is_current()
    second.release(remove=True)
    assert not path.exists()


def test_a_lock_goes_with_its_process(tmp_path):
    code = "import sys, time; from pathlib import Path; from tokenfeed.storage.locks import FileLock\n"
    code += "lock = FileLock(Path(sys.argv[1]))\nlock.take(exclusive=True)\nprint('held', flush=True)\ntime.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", code, tmp_path / "lock"], stdout=subprocess.PIPE)
    process.stdout.readline()
    lock = FileLock(tmp_path / "lock")
    assert not lock.take(exclusive=False)
    process.kill()
    process.communicate()
    assert lock.take(exclusive=True)


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EBADF, errno.EIO])
def test_a_file_system_without_locks(tmp_path, monkeypatch, number):
    """Everyone gets it, and nobody is known to be alone; other errors are told."""

    def flock(*_):
        raise OSError(number, "")

    monkeypatch.setattr(fcntl, "flock", flock)
    lock = FileLock(tmp_path / "lock")
    if number == errno.EIO:
        with pytest.raises(WriteError, match="EIO"):
            lock.take(exclusive=True)
    else:
        assert lock.take(exclusive=True)
        assert not lock.is_known


def test_the_lock_of_a_run(tmp_path, monkeypatch):
    monkeypatch.setattr(workplace, "_PATIENCE_SECONDS", 0.1)
    (tmp_path / ".prepare").mkdir()
    place, path = Workplace(tmp_path), tmp_path / ".prepare" / "lock"
    with place.lock as held, place.lock as other:
        held.take(exclusive=True)
        assert held.is_alone()
        with pytest.raises(StateError, match="another run"):
            other.take(exclusive=False)
        held.take(exclusive=False)
        other.take(exclusive=False)
        assert path.exists()
    assert not path.exists()
    with Workplace("memory://bucket/store").lock as nothing:
        nothing.take(exclusive=True)
        assert not nothing.is_alone()
