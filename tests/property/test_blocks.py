"""Blocks of remote files: the cache in memory and the one on disk against plain Python, under random use."""

import itertools
import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tiers import examples
from tokenfeed.kernels import blocks, posix
from tokenfeed.kernels.checksum import checksum
from tokenfeed.storage import objects
from tokenfeed.storage.disk_cache import DiskCache
from tokenfeed.storage.files import FileTable, Part
from tokenfeed.storage.remote import Remote

BLOCK = 512
numbers = itertools.count()


class Model:
    """The latest `slots` blocks that were put in."""

    def __init__(self, slots):
        self.slots = [None] * slots
        self.next = 0

    def put(self, key):
        if key not in self.slots:
            self.slots[self.next] = key
            self.next = (self.next + 1) % len(self.slots)


def make_cache(slots, index_size, log_size=1000):
    arrays = {
        "slots": np.zeros(slots * BLOCK, np.uint8),
        "keys": np.full(slots, blocks.EMPTY, np.int64),
        "index": np.full(index_size, blocks.EMPTY, np.int64),
        "log": np.zeros(log_size + 1, np.int64),
    }
    sizes = {"block_bytes": BLOCK, "num_slots": slots, "index_size": index_size, "log_size": log_size}
    addresses = {field: array.ctypes.data for field, array in arrays.items()}
    return posix.record(blocks.CACHE, **sizes, **addresses), arrays


KEYS = st.tuples(st.integers(0, 3), st.integers(0, 12)).map(lambda pair: pair[0] << blocks.BLOCK_BITS | pair[1])


@given(slots=st.integers(1, 13), puts=st.lists(st.lists(KEYS, min_size=1, max_size=6), max_size=30))
def test_memory_holds_the_latest_blocks(slots, puts):
    """An index hardly larger than the slots: searches pass over many entries, and gaps are closed all the time."""
    header, arrays = make_cache(slots, 1 << slots.bit_length())
    model = Model(slots)
    for keys in puts:
        data = np.repeat(np.array([key % 251 for key in keys], np.uint8), BLOCK)
        blocks.put_blocks(header, np.array(keys, np.int64), data)
        for key in keys:
            model.put(key)
        everything = np.array([f << blocks.BLOCK_BITS | b for f in range(4) for b in range(13)], np.int64)
        absent = set(blocks.missing_blocks(header, everything).tolist())
        assert absent == set(everything.tolist()) - {key for key in model.slots if key is not None}
        for key in model.slots:
            if key is not None:
                out = np.zeros(BLOCK, np.uint8)
                file, block = key >> blocks.BLOCK_BITS, key & ((1 << blocks.BLOCK_BITS) - 1)
                assert blocks.read_through(header.ctypes.data, file, block * BLOCK, BLOCK, out.ctypes.data) == posix.OK
                assert (out == key % 251).all()
    assert arrays["log"][0] == 0


SIZES = st.lists(st.integers(0, 5000), min_size=1, max_size=3)
READS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5000), st.integers(0, 3000)), min_size=1, max_size=12)


@given(
    sizes=SIZES,
    calls=st.lists(READS, min_size=1, max_size=4),
    gap=st.sampled_from([0, 512, 2048]),
    memory=st.sampled_from([0, 1 << 16]),
    cached=st.booleans(),
    again=st.booleans(),
)
@settings(max_examples=examples(60), deadline=None)
def test_any_range_reads_as_it_was_written(sizes, calls, gap, memory, cached, again):
    home = f"memory://blocks-{next(numbers)}"
    contents = [np.random.default_rng(size).bytes(size) for size in sizes]
    for number, content in enumerate(contents):
        objects.write(f"{home}/{number}", content)
    with tempfile.TemporaryDirectory() as folder:
        how = Remote(
            cache=folder if cached else None, block_bytes=BLOCK, memory_bytes=memory, gap_bytes=gap, request_bytes=2048
        )
        for _ in range(1 + again):
            table = FileTable(len(sizes), lambda number: Part(f"{home}/{number}", sizes[number]), remote=how)
            for reads in calls:
                wanted = [(file % len(sizes), start, count) for file, start, count in reads]
                wanted = [(f, min(s, sizes[f]), min(c, sizes[f] - min(s, sizes[f]))) for f, s, c in wanted]
                for file, _, _ in wanted:
                    table.open(file)
                out = np.zeros(sum(count for *_, count in wanted), np.uint8)
                assert table.call(read_all, table.rows, wanted, out) == (posix.OK, 0)
                expected = b"".join(contents[file][start : start + count] for file, start, count in wanted)
                assert out.tobytes() == expected
            table.blocks.close()
            if not again:
                continue
            stats = table.blocks.stats()
            assert stats.cache_damaged == 0
        if again and cached:
            assert stats.requests == 0  # all of it is on disk


def read_all(rows, wanted, out):
    """As a kernel does: what is missing of any range is noted, and MISSING told at the end."""
    status, done = posix.OK, 0
    for file, start, count in wanted:
        if count:
            found = blocks.read_through(int(rows["reader"][file]), file, start, count, out.ctypes.data + done)
            status = found if found != posix.OK else status
        done += count
    return status, 0


STEPS = st.lists(
    st.tuples(st.sampled_from(["store", "damage", "load"]), st.integers(0, 1), st.integers(0, 9), st.integers(1, 4)),
    max_size=30,
)


@given(steps=STEPS)
def test_disk_gives_what_was_stored_or_nothing(steps):
    size = 9 * BLOCK + 100  # the last block is short
    files = {number: Part("", size, identity=f"file{number}") for number in range(2)}
    contents = {number: np.random.default_rng(number).integers(0, 256, size, np.uint8) for number in files}
    there: dict[tuple[int, int], bool] = {}
    """Blocks that were stored, and whether they are whole."""
    with tempfile.TemporaryDirectory() as folder:
        cache = DiskCache(Path(folder), 1 << 30, BLOCK)
        for what, file, first, count in steps:
            stop = min(first + count, 10)
            if what == "store":
                cache.store(files[file], first, contents[file][first * BLOCK : stop * BLOCK])
                there |= {(file, block): True for block in range(first, stop)}
            elif what == "damage":
                with (
                    Path(folder, f"{checksum(b'file%d' % file)}-{BLOCK}", "data").open("r+b")
                    if (file, first) in there
                    else (tempfile.TemporaryFile()) as data
                ):
                    data.seek(first * BLOCK + 7)
                    byte = data.read(1) or b"\0"
                    data.seek(first * BLOCK + 7)
                    data.write(bytes([byte[0] ^ 1]))
                if (file, first) in there:
                    there[file, first] = not there[file, first]
            else:
                keys = [f << blocks.BLOCK_BITS | b for f in files for b in range(10)]
                good, damaged, data = cache.load(np.array(keys, np.int64), files)
                states = [there.get((f, b)) for f in files for b in range(10)]
                assert good.tolist() == [state is True for state in states]
                assert damaged.tolist() == [state is False for state in states]
                whole = [(f, b) for f in files for b in range(10) if there.get((f, b))]
                for place, (f, b) in enumerate(whole):
                    expected = contents[f][b * BLOCK : (b + 1) * BLOCK]
                    assert (data[place * BLOCK :][: expected.size] == expected).all()
