"""A wall clock that jumps an hour forwards and backwards at every look: nothing hangs, and the result is the same.

The clock is that of the C library (`tests/injection.c`), so it jumps for Python and for all that it calls alike. Who
looks at it: run files and snapshots (a time is noted), shards whose writer has no name (it begins their names), and the
disk cache (what nobody used for ten minutes may make room).
"""

import json
import subprocess
import sys
import time

import pytest

import tokenfeed
from flaky_server import FlakyServer
from golden import golden_tokenizer
from injection import injected_environment
from preparing import make_documents, picture, write_jsonl
from tiers import slow
from tokenfeed.kernels.checksum import checksum
from tokenfeed.store.verify import verify


def run(code, *arguments, jumps=True):
    """What the code prints, as JSON."""
    environment = injected_environment(**({"INJECT_CLOCK": "3600"} if jumps else {}))
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


LOOKS = "import time, json; print(json.dumps(sorted(round(time.time() / 100) for _ in range(4))))"


def test_the_clock_jumps():
    """Else the other tests would show nothing."""
    first, second, third, last = run(LOOKS)
    assert (first, third) == (second, last)
    assert third - first == 72
    assert len(set(run(LOOKS, jumps=False))) <= 2


TRAINING = """
import json, sys, tokenfeed
from tokenfeed.observe import publish
from tokenfeed.kernels.checksum import checksum
store, folder = sys.argv[1:]
loader = tokenfeed.Loader(tokenfeed.open(store).windows(50), 8, prefetch=4, run=folder + "/run.jsonl")
publisher = publish(loader, folder + "/run.stats.jsonl", every=0.01)
taken = []
for number in range(40):
    taken.append(checksum(next(loader).tokens.tobytes()))
    if number % 10 == 9:
        loader.load_state_dict(json.loads(json.dumps(loader.state_dict())))
publisher.close()
loader.close()
print(json.dumps(taken))
"""


def test_a_loader_its_run_file_and_its_snapshots(store_path, tmp_path):
    undisturbed = run(TRAINING, store_path, tmp_path, jumps=False)
    (tmp_path / "jumps").mkdir()
    assert run(TRAINING, store_path, tmp_path / "jumps") == undisturbed
    starts = tokenfeed.Run(tmp_path / "jumps" / "run.jsonl").starts
    assert [start.samples for start in starts] == [0, 80, 160, 240]
    away = [abs(start.time - time.time()) for start in starts]  # on which side, other threads' looks decide
    assert min(away) > 3000, "the run file saw no jump"


WRITING = """
import json, sys, tokenfeed
for number in range(6):
    options = {"mode": "append", "columns": {"tokens": "uint16"}, "spans": {"documents": "json"}}
    with tokenfeed.Writer(sys.argv[1], **options) as writer:
        writer.append({"tokens": range(number, number + 9)}, documents=number)
print(json.dumps([shard.name for shard in tokenfeed.open(sys.argv[1]).shards]))
"""


def test_writers_without_names(tmp_path):
    """Their shards are ordered by a clock that jumps; none is lost, and none overwrites another."""
    names = run(WRITING, tmp_path / "store")
    assert len(set(names)) == 6
    assert verify(tmp_path / "store").ok
    documents = tokenfeed.open(tmp_path / "store").documents()
    found = {one.payload: one.tokens.tolist() for one in documents}
    assert found == {number: list(range(number, number + 9)) for number in range(6)}


PREPARING = """
import sys, tokenfeed
tokenfeed.prepare(sys.argv[1], sys.argv[2], tokenizer=sys.argv[3], workers=2, engine="processes",
    slice_bytes=60_000, shard_bytes=50_000)
print(0)
"""


def test_prepare(tmp_path):
    """Byte for byte the same store, from workers whose clocks jump too."""
    write_jsonl(tmp_path / "text.jsonl", make_documents(200))
    golden_tokenizer("tiktoken").save(tmp_path / "tokenizer")
    text, tokenizer = tmp_path / "text.jsonl", tmp_path / "tokenizer"
    tokenfeed.prepare(
        text, tmp_path / "expected", tokenizer=tokenizer, workers=0, slice_bytes=60_000, shard_bytes=50_000
    )
    run(PREPARING, text, tmp_path / "store", tokenizer)
    assert picture(tmp_path / "store") == picture(tmp_path / "expected")


CACHED = """
import json, sys, tokenfeed
from tokenfeed.kernels.checksum import checksum
remote = tokenfeed.Remote(cache=sys.argv[2], cache_bytes=int(sys.argv[3]), block_bytes=512, gap_bytes=0)
view = tokenfeed.open(sys.argv[1], remote=remote).windows(50)
loader = tokenfeed.Loader(view, 8, prefetch=4)
taken = [checksum(next(loader).tokens.tobytes()) for _ in range(2 * len(view) // 8)]
loader.close()
print(json.dumps([taken, view.reader.stats().cache_hits]))
"""


@pytest.mark.parametrize("cache_bytes", [20_000, *slow(1 << 20)])
def test_the_disk_cache(store_path, tmp_path, cache_bytes):
    """With room for everything, and with so little that it looks for what nobody used for ten minutes."""
    with FlakyServer() as server:
        server.put_folder(store_path)
        for _ in range(2):
            taken, hits = run(CACHED, server.url(""), tmp_path / "cache", cache_bytes)
    view = tokenfeed.open(store_path).windows(50)
    loader = tokenfeed.Loader(view, 8, prefetch=0)
    assert taken == [checksum(next(loader).tokens.tobytes()) for _ in range(2 * len(view) // 8)]
    assert hits > 0
