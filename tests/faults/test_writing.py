"""Writers that are killed, that run out of disk, that are interrupted."""

import contextlib
import itertools
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import tokenfeed
from tiers import pick
from tokenfeed.errors import TokenfeedError, WriteError
from tokenfeed.store.verify import verify

CODE = """
import sys, itertools, numpy as np, tokenfeed
path, seed = sys.argv[1], int(sys.argv[2])
for round in itertools.count():
    if round == 1:
        print("the first shards are there", flush=True)
    with tokenfeed.Writer(path, mode="append", columns={"tokens": "uint16"}, spans={"documents": "json"},
                          name=f"{seed}-{round}", shard_bytes=20_000, sync=False) as writer:
        for number in range(100):
            tokens = (np.arange(100 + number) + number).astype(np.uint16)
            writer.append({"tokens": tokens}, documents=[number, len(tokens)])
"""


def check(path):
    """Whatever was committed is whole, and nothing else is seen."""
    report = verify(path)
    assert report.ok, report.problems
    documents = tokenfeed.open(path).documents()
    for document in documents:
        number, length = document.payload
        np.testing.assert_array_equal(document.tokens, np.arange(length) + number)
    return len(documents)


def test_kill_minus_nine_at_any_moment(tmp_path):
    """Again and again; what was committed before stays, and the store goes on being written to."""
    rng = np.random.default_rng(0)
    seen = 0
    for seed in range(int(os.environ.get("KILL_ROUNDS", pick(3, 8)))):
        process = subprocess.Popen([sys.executable, "-c", CODE, str(tmp_path), str(seed)], stdout=subprocess.PIPE)
        if seed % 4:  # every fourth is killed while it starts
            process.stdout.readline()
        time.sleep(float(rng.uniform(0, 0.1)))
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        if not list(tmp_path.glob("*/shard.json")):
            continue
        now = check(tmp_path)
        assert now >= seen
        seen = now
    assert seen >= 100
    tokenfeed.seal(tmp_path)
    assert check(tmp_path) == seen


def test_a_full_disk(tmp_path):
    """A file system of 1 MiB: what was committed before it was full is there, and nothing else."""
    code = """
import ctypes, os, sys
import numpy as np
import tokenfeed
from tokenfeed.store.verify import verify
path = sys.argv[1]
libc = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNS, MS_REC_PRIVATE = 0x20000, 0x4000 | 0x40000
assert libc.unshare(CLONE_NEWNS) == 0, "root is needed to mount a small file system"
libc.mount(b"none", b"/", None, MS_REC_PRIVATE, None)
assert libc.mount(b"tmpfs", path.encode(), b"tmpfs", 0, b"size=1m") == 0
store = path + "/store"
try:
    columns, spans = {"tokens": "uint16"}, {"documents": "json"}
    with tokenfeed.Writer(store, columns=columns, spans=spans, shard_bytes=300_000) as writer:
        for number in range(1000):
            writer.append({"tokens": np.full(5000, number)}, documents=number)
except tokenfeed.errors.WriteError as error:
    assert error.errno == 28 and "ENOSPC" in str(error) and error.filename.startswith(store), error
else:
    raise AssertionError("the disk was not full")
assert verify(store).ok and not verify(store).notes, verify(store)
documents = tokenfeed.open(store).documents()
assert 50 < len(documents) < 200, len(documents)
for number, document in enumerate(documents):
    assert document.payload == number and (document.tokens == number).all()
"""
    if os.getuid() != 0:
        pytest.skip("root is needed to mount a small file system")
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_store_that_cannot_be_created(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(WriteError, match="file"):
        tokenfeed.Writer(tmp_path / "file" / "store", columns={"tokens": "u1"})


def interrupt(patch, number, error):
    """Raises an error at one call of what makes and writes files: before it opens a file, after it did anything else.

    Returns the calls so far, each as whether it was that one.
    """
    calls = []

    def wrap(name):
        call = getattr(os, name)

        def counted(*arguments, **options):
            calls.append(hit := len(calls) == number)
            if hit and (name == "open" or isinstance(error, OSError)):
                raise error
            done = call(*arguments, **options)
            if hit:
                raise error
            return done

        patch.setattr(os, name, counted)

    for name in ("open", "mkdir", "ftruncate", "pwrite", "link"):
        wrap(name)
    return calls


def write_interrupted(path, number, error):
    """The documents that must be there after an error at one call; how many the writer said are lost; the calls."""
    given, lost = [], 0

    @contextlib.contextmanager
    def going_on():
        nonlocal lost
        error.__notes__ = []
        try:
            yield
        except (KeyboardInterrupt, TokenfeedError) as caught:
            for note in getattr(caught, "__notes__", ()):
                found = re.search(r"the first ([\d,]+) are kept, and the ([\d,]+) after them \(([\d,]+) items?\)", note)
                kept, documents, items = (int(text.replace(",", "")) for text in found.groups())
                assert (kept + documents, items) == (len(given), sum(map(len, given[kept:])))
                lost += documents
                del given[kept:]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tokenfeed.store.shard_writer._BUFFER_BYTES", 128)
        patch.setattr("tokenfeed.store.shard_writer._PENDING_SPANS", 3)
        columns, spans = {"tokens": "uint16", "frame": ("uint8", (2, 3))}, {"documents": "json", "concepts": "msgpack"}
        writer = tokenfeed.Writer(path, columns=columns, spans=spans, shard_bytes=1500, sync=False)
        calls = interrupt(patch, number, error)
        for start in range(0, 400, 40):
            tokens = np.arange(start, start + 30)
            items = {"tokens": tokens, "frame": np.zeros((30, 2, 3), int)}
            with going_on():
                if start % 80:
                    given.append(tokens.tolist())
                    writer.append(items, documents=start)
                    given[-1] += tokens[:10].tolist()
                    writer.extend({name: values[:10] for name, values in items.items()}, concepts=[start])
                else:
                    given += [tokens[:10].tolist(), tokens[10:].tolist()]
                    writer.append(items, lengths=[10, 20], documents=[start, start + 10])
        with going_on():
            writer.close()
    return given, lost, calls


@pytest.mark.parametrize(
    ("error", "home"),
    [(KeyboardInterrupt(), None), (OSError(28, "no room"), None), (KeyboardInterrupt(), "memory://interrupted")],
    ids=["Ctrl-C", "no room", "Ctrl-C, remote"],
)
def test_any_error_while_a_shard_is_written_loses_that_shard_alone(tmp_path, error, home):
    """At every call. The writer goes on, and says what is lost: what is there at the end is all the rest, whole."""
    hits = losses = 0
    for number in itertools.count():
        path = f"{home or tmp_path}/{number}"
        given, lost, calls = write_interrupted(path, number, error)
        assert verify(path).problems == []
        documents = list(tokenfeed.open(path).documents())
        assert [document.tokens.tolist() for document in documents] == given, number
        assert [document.payload for document in documents] == [tokens[0] for tokens in given]
        if not any(calls):
            break
        hits, losses = hits + 1, losses + (lost > 0)
    assert (len(given), lost) == (15, 0)
    assert losses > 0.9 * hits > 50
