"""Packing plans that are damaged, of other data, never finished, or that cannot be where they should."""

import errno
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest

import tokenfeed
from opening import as_nobody
from tiers import pick
from tokenfeed.errors import CorruptionError, FormatError, MissingError, StateError, TokenfeedError, WriteError
from tokenfeed.format.records import sign

LENGTH = 50


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    """Nothing is written to the home of whoever runs the tests."""
    monkeypatch.setenv("TOKENFEED_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "packed"


@pytest.fixture
def store(store_path):
    return tokenfeed.open(store_path)


@pytest.fixture
def plan(store):
    return store.pack(LENGTH).folder


def read_all(store):
    view = store.packed(LENGTH)
    return view.read(np.arange(len(view))).tokens


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_store_that_has_changed(store, plan, store_path):
    columns, spans = {"tokens": "uint16", "frame": ("uint8", (2, 3))}, {"documents": "json", "concepts": "msgpack"}
    with tokenfeed.Writer(store_path, mode="append", columns=columns, spans=spans) as writer:
        writer.append({"tokens": [1], "frame": np.zeros((1, 2, 3), np.uint8)}, documents=1, concepts=1)
    changed = tokenfeed.open(store_path)
    with pytest.raises(StateError, match=r"data is .*, expected .*\. Pack .*`tokenfeed pack /.* --length 50`"):
        changed.packed(LENGTH)
    assert len(read_all(store)) > 0  # who opened it before still sees what was there then
    assert changed.pack(LENGTH).items == store.num_items + 1
    assert len(read_all(changed)) > 0


@pytest.mark.parametrize("name", ["rows.npy", "pieces.npy", "pack.json"])
@pytest.mark.parametrize("keep", [0, 1, 100, -2])
def test_a_truncated_file(store, plan, name, keep):
    data = (plan / name).read_bytes()
    (plan / name).write_bytes(data[:keep])
    with pytest.raises(FormatError, match=name.replace(".", r"\.")):
        store.packed(LENGTH)
    (plan / name).write_bytes(data + b" \0")
    with pytest.raises(FormatError, match=name.replace(".", r"\.")):
        store.packed(LENGTH)


@pytest.mark.parametrize("name", ["rows.npy", "pieces.npy"])
def test_a_missing_file(store, plan, name):
    (plan / name).unlink()
    with pytest.raises(TokenfeedError, match=name.replace(".", r"\.")):
        store.packed(LENGTH)


@pytest.mark.parametrize("name", ["rows.npy", "pieces.npy", "pack.json"])
def test_any_flipped_bit_is_noticed(store, plan, name):
    """By opening, or by reading the row that it concerns; what is read without an error is what was written."""
    data = (plan / name).read_bytes()
    expected = read_all(store)
    rng = np.random.default_rng(0)
    for position in sorted({*rng.integers(0, len(data), 150).tolist(), len(data) - 1}):
        changed = bytearray(data)
        changed[position] ^= 1 << int(rng.integers(0, 8))
        (plan / name).write_bytes(changed)
        with pytest.raises(TokenfeedError):
            read_all(store)
    (plan / name).write_bytes(data)
    np.testing.assert_array_equal(read_all(store), expected)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"rows": 10**15}, CorruptionError),
        ({"pieces": 2**61}, CorruptionError),
        ({"rows": 2**62}, FormatError),
        ({"rows": -1}, FormatError),
        ({"rows": 1.5}, FormatError),
        ({"algorithm": 2}, StateError),
        ({"identity": "0" * 16}, StateError),
        ({"identity": "../../etc"}, FormatError),
        ({"items": 7}, StateError),
        ({"version": 2}, FormatError),
        ({"format": "tokenfeed"}, FormatError),
    ],
)
def test_a_record_that_is_whole_but_wrong(store, plan, change, error):
    """Sizes are checked before anything is allocated."""
    fields = {**json.loads((plan / "pack.json").read_bytes()), **change}
    del fields["checksum"]
    (plan / "pack.json").write_text(sign("tokenfeed-pack", fields))
    with pytest.raises(error):
        store.packed(LENGTH)


def test_a_huge_record(store, plan):
    (plan / "pack.json").write_bytes(b" " * (1 << 20))
    with pytest.raises(CorruptionError, match="1,048,576 bytes"):
        store.packed(LENGTH)


def test_span_tables_that_are_damaged(store_path):
    file = store_path / "part-00000" / "documents.starts.npy"
    data = np.load(file)
    for position, value in ((0, 1), (5, 2**40), (5, -3), (data.size - 1, 10**9)):
        changed = data.copy()
        changed[position] = value
        file.write_bytes(file.read_bytes()[:128] + changed.tobytes())
        with pytest.raises(CorruptionError, match=r"documents\.starts\.npy"):
            tokenfeed.open(store_path).pack(LENGTH)
        assert list(store_path.glob(".packed*/*")) == []
        with pytest.raises(MissingError):
            tokenfeed.open(store_path).packed(LENGTH)


CODE = """
import sys, tokenfeed
from tokenfeed.store import packing
packing._SLICE = 16
store = tokenfeed.open(sys.argv[1])
told = 0
def tell(done, total):
    global told
    told += 1
    if told == 1:
        print("at work", flush=True)
store.pack(20, progress=tell)
"""


def test_kill_minus_nine_at_any_moment(tmp_path):
    """Nothing that opens is left, and the next one makes the same plan and cleans up."""
    with tokenfeed.Writer(tmp_path / "store", columns={"tokens": "u1"}, spans={"documents": None}) as writer:
        lengths = np.random.default_rng(0).integers(0, 60, 20_000)
        writer.append({"tokens": np.zeros(lengths.sum(), np.uint8)}, lengths=lengths.tolist())
    store = tokenfeed.open(tmp_path / "store")
    store.pack(20, cache=tmp_path / "expected")
    folder = tmp_path / "store" / ".packed-documents-20"
    rng = np.random.default_rng(1)
    rounds, killed = int(os.environ.get("KILL_ROUNDS", pick(1, 4))), 0
    while killed < rounds:
        process = subprocess.Popen([sys.executable, "-c", CODE, tmp_path / "store"], stdout=subprocess.PIPE)
        process.stdout.readline()
        time.sleep(float(rng.uniform(0, 0.03)))
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        if (folder / "pack.json").exists():  # it was done before it could be killed
            shutil.rmtree(folder)
            continue
        killed += 1
        with pytest.raises(MissingError):
            store.packed(20)
    store.pack(20)
    assert contents(folder) == contents(tmp_path / "expected")


def test_interrupted(store, store_path):
    """Ctrl-C while it works: nothing is left, and a plan that was there before is not hurt."""

    def interrupt(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.pack(LENGTH, progress=interrupt)
    assert list((store_path / f".packed-documents-{LENGTH}").iterdir()) == []
    before = contents(store.pack(LENGTH).folder)
    with pytest.raises(KeyboardInterrupt):
        store.pack(LENGTH, progress=interrupt)
    assert contents(store_path / f".packed-documents-{LENGTH}") == before
    assert len(read_all(store)) > 0


def test_many_at_once(store, store_path):
    """All of them succeed, and one plan is there."""
    from concurrent.futures import ThreadPoolExecutor

    expected = contents(store.pack(LENGTH).folder)
    with ThreadPoolExecutor(8) as pool:
        folders = {report.folder for report in pool.map(lambda _: store.pack(LENGTH), range(40))}
    assert folders == {store_path / f".packed-documents-{LENGTH}"}
    assert contents(folders.pop()) == expected


def test_what_a_killed_process_left_behind_is_removed(store, plan):
    (plan / ".left").mkdir()
    (plan / ".left" / "rows.npy").write_bytes(b"half")
    store.pack(LENGTH)
    assert [path for path in plan.iterdir() if path.is_dir()] == []


def test_a_file_system_without_locks(store, plan, monkeypatch):
    """Whose is what lies there cannot be told, so it stays."""

    def flock(descriptor, operation):
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(fcntl, "flock", flock)
    (plan / ".of-another").mkdir()
    assert store.pack(LENGTH).rows == len(read_all(store))
    assert [path.name for path in plan.iterdir() if path.is_dir()] == [".of-another"]


def test_a_store_that_is_read_only(plain, monkeypatch):
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        plain.write(Path(folder, "store"))
        Path(folder, "store").chmod(0o555)
        monkeypatch.setenv("TOKENFEED_CACHE", str(Path(folder, "cache")))
        store = tokenfeed.open(Path(folder, "store"))
        with as_nobody():
            report = store.pack(LENGTH)
            assert report.folder == Path(folder, "cache", "packed", f"{store.identity}-documents-{LENGTH}")
            assert len(read_all(store)) == report.rows
            with pytest.raises(WriteError, match="Permission denied"):
                store.pack(LENGTH, cache=Path(folder, "store", "mine"))
        # A plan of other data in the store does not hide the one in the cache.
        Path(folder, "store").chmod(0o755)
        stale = Path(folder, "store", f".packed-documents-{LENGTH}")
        stale.mkdir()
        fields = {**json.loads((report.folder / "pack.json").read_bytes()), "identity": "0" * 16}
        del fields["checksum"]
        (stale / "pack.json").write_text(sign("tokenfeed-pack", fields))
        assert len(read_all(store)) == report.rows
