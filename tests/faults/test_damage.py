"""Damaged stores: each damage gives a typed error that names the file; never a crash, never wrong data."""

import itertools
import json
import os
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tokenfeed
from opening import open_store
from plain import make_documents
from tokenfeed.errors import CorruptionError, ReadError, TokenfeedError, TruncatedError
from tokenfeed.format.layout import CHECKED_BYTES, SHARD_SUMS
from tokenfeed.store.verify import verify

SPAN_HEADER = 128


def read_everything(path: Path, **options):
    """All windows, all documents, all payloads."""
    store = tokenfeed.open(path, **options)
    windows = store.windows(32, columns=["frame"], spans=["documents", "concepts"])
    read = windows.read(np.arange(len(windows)))
    taken = [read.tokens.tobytes(), read.column("frame").tobytes()]
    for table in ("documents", "concepts"):
        documents = store.documents(table)
        batch = documents.read(np.arange(len(documents)))
        taken += [batch.tokens.tobytes(), batch.payloads]
        taken += [[(span.number, span.start, span.stop, span.payload) for span in row] for row in read.spans[table]]
    return taken


NAMES = [
    "concepts.anchors.npy",
    "concepts.offsets.npy",
    "concepts.payload.bin",
    "concepts.starts.npy",
    "documents.anchors.npy",
    "documents.offsets.npy",
    "documents.payload.bin",
    "documents.starts.npy",
    "frame.npy",
    "tokens.npy",
]


DAMAGES = ["missing", "empty", "shorter", "longer", "folder"]
BACKENDS = ["pread", "mmap"]
# Every damage of every file, every file and every damage by each backend; the full tier has all three together.
CASES = [
    pytest.param(name, damage, backend, marks=() if (i + j + k) % 2 == 0 else pytest.mark.slow)
    for i, name in enumerate(NAMES)
    for j, damage in enumerate(DAMAGES)
    for k, backend in enumerate(BACKENDS)
]


@pytest.mark.parametrize(("name", "damage", "backend"), CASES)
def test_a_damaged_file_is_named(store_path, name, damage, backend):
    file = store_path / "part-00001" / name
    data = file.read_bytes()
    if damage == "missing":
        file.unlink()
    elif damage == "empty":
        file.write_bytes(b"")
    elif damage == "shorter":
        file.write_bytes(data[:-1])
    elif damage == "longer":
        file.write_bytes(data + b"x")
    else:
        file.unlink()
        file.mkdir()
    with pytest.raises((CorruptionError, ReadError), match=f"part-00001/{name}"):
        read_everything(store_path, backend=backend)
    report = verify(store_path, quick=True)
    assert any(f"part-00001/{name}" in problem for problem in report.problems)


@pytest.mark.parametrize("name", NAMES)
def test_a_file_of_another_shard(store_path, name):
    """Anchors only say where to look, so wrong ones do no harm; anything else of another size is noticed."""
    before = read_everything(store_path)
    file, other = (store_path / shard / name for shard in ("part-00001", "part-00002"))
    same = file.read_bytes() == other.read_bytes()
    shutil.copy(other, file)
    try:
        assert read_everything(store_path) == before
        assert "anchors" in name
    except CorruptionError as error:
        assert f"part-00001/{name.split('.')[0]}" in str(error)
    assert same != any(f"part-00001/{name}" in problem for problem in verify(store_path).problems)


def test_verify_accepts_a_sound_store(store_path):
    report = verify(store_path)
    assert report.ok
    assert not report.notes
    assert report.num_files == len(list(store_path.rglob("*.npy"))) + len(list(store_path.rglob("*.bin")))
    seen = []
    verify(store_path, progress=lambda done, total: seen.append(done / total))
    assert 0 < seen[0] <= seen[-1] <= 1


@pytest.mark.parametrize(
    "name", ["tokens.npy", "documents.starts.npy", "documents.offsets.npy", SHARD_SUMS, "pieces.npy"]
)
def test_a_file_that_is_cut_while_verify_reads_it_is_damage(tmp_path, monkeypatch, name):
    """After any slice of any file; one that was read by then may go unnoticed."""
    monkeypatch.setattr("tokenfeed.store.verify._SLICE_BYTES", CHECKED_BYTES)
    monkeypatch.setattr("tokenfeed.store.verify._SLICE_ITEMS", CHECKED_BYTES // 8)
    path = tmp_path / "store"
    make_documents([7] * 3000).write(path, name="part")
    tokenfeed.open(path).pack(50)
    (file,) = path.glob(f"*/{name}")
    data, found = file.read_bytes(), []

    def cut(slices, *_):
        if next(slices) == 0:
            os.truncate(file, len(data) // 2 + 3)

    for number in itertools.count():
        slices = itertools.count(-number)
        report = verify(path, progress=partial(cut, slices))
        if next(slices) <= 0:
            break
        found += report.problems
        file.write_bytes(data)
    assert all(name in problem for problem in found), found
    assert any("ended while it was being read" in problem for problem in found), found
    assert report.ok


@pytest.mark.parametrize("backend", ["pread", "mmap"])
@given(name=st.sampled_from(NAMES), position=st.integers(0, 10_000), patch=st.binary(min_size=1, max_size=16))
def test_damaged_bytes_never_crash_a_kernel(damaged_store, backend, name, position, patch):
    """Sizes agree, contents lie. Spans and payloads may only be wrong where nothing can tell; columns may."""
    file = damaged_store / "part-00001" / name
    data = file.read_bytes()
    position = SPAN_HEADER + position % (len(data) - SPAN_HEADER) if len(data) > SPAN_HEADER + 1 else 0
    file.write_bytes((data[:position] + patch + data[position + len(patch) :])[: len(data)])
    try:
        read_everything(damaged_store, backend=backend)
    except TokenfeedError:
        pass
    finally:
        file.write_bytes(data)


@pytest.fixture(scope="module")
def damaged_store(tmp_path_factory):
    path = tmp_path_factory.mktemp("damage") / "store"
    make_documents([(7 * number * number) % 401 for number in range(120)]).write(path, shard_bytes=40_000, name="part")
    return path


EXTREMES = [-(2**63), -1, 2**31, 2**62, 2**63 - 1]


@pytest.mark.parametrize("value", EXTREMES)
@pytest.mark.parametrize("table", ["documents", "concepts"])
@pytest.mark.parametrize("file", ["starts", "anchors", "offsets"])
@pytest.mark.parametrize("entry", [0, 1, -1])
def test_span_tables_that_lie(store_path, table, file, entry, value):
    path = store_path / "part-00001" / f"{table}.{file}.npy"
    numbers = np.load(path, mmap_mode="r+")
    if numbers[min(entry, len(numbers) - 1)] == value:
        value = 5
    numbers[min(entry, len(numbers) - 1)] = value
    numbers.flush()
    del numbers
    for quick in (True, False):
        assert any(path.name in problem for problem in verify(store_path, quick=quick).problems)
    try:
        read_everything(store_path)
    except TokenfeedError as error:
        assert f"part-00001/{table}" in str(error)


@pytest.mark.parametrize("change", ["fewer", "more", "huge"])
def test_a_manifest_that_disagrees_with_its_files(store_path, change):
    path = store_path / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["shards"][1]["items"] = {"fewer": 1, "more": manifest["shards"][1]["items"] + 1, "huge": 2**61}[change]
    path.write_text(json.dumps(manifest))
    view = tokenfeed.open(store_path).windows(10)
    first = tokenfeed.open(store_path).shards[0].num_items // 10
    with pytest.raises((CorruptionError, ReadError), match="part-00001"):
        view.read([first, first + 1])
    assert not verify(store_path, quick=True).ok


def test_shards_that_claim_more_than_can_be(store_path):
    path = store_path / "manifest.json"
    manifest = json.loads(path.read_text())
    for shard in manifest["shards"]:
        shard["items"] = 2**61
    path.write_text(json.dumps(manifest))
    with pytest.raises(CorruptionError, match=r"the most is 2\*\*62"):
        tokenfeed.open(store_path)


def test_a_listed_shard_that_is_missing(store_path):
    shutil.rmtree(store_path / "part-00001")
    store = tokenfeed.open(store_path)
    with pytest.raises(ReadError, match="part-00001") as caught:
        store.windows(store.num_items - 1).read([0])
    assert caught.value.errno == 2
    assert not verify(store_path).ok


def test_leftovers_are_told_from_faults(store_path):
    (store_path / "killed-00000").mkdir()
    report = verify(store_path)
    assert report.ok
    assert "killed-00000" in report.notes[0]


@pytest.mark.parametrize("limit", [None, 0])
def test_a_file_truncated_under_a_reader(store_path, limit):
    view = open_store(store_path, open_files=limit).windows(50)
    view.read(np.arange(len(view)))
    for file in store_path.rglob("tokens.npy"):
        os.truncate(file, 200)
    with pytest.raises(TruncatedError, match=r"tokens\.npy"):
        view.read(np.arange(len(view)))


def test_a_file_deleted_under_a_reader(store_path, plain):
    """What is open stays readable; what has to be opened again is missed."""
    kept, reopened = (open_store(store_path, open_files=limit).windows(50) for limit in (None, 0))
    indices = np.arange(len(kept))
    before = kept.read(indices).tokens.copy(), reopened.read(indices).tokens.copy()
    for file in store_path.rglob("tokens.npy"):
        file.unlink()
    np.testing.assert_array_equal(kept.read(indices).tokens, before[0])
    with pytest.raises(ReadError, match=r"tokens\.npy.*ENOENT"):
        reopened.read(indices)


def test_an_io_error_is_named(store_path):
    """A folder in place of an open file: pread gives EISDIR."""
    view = open_store(store_path, open_files=0).windows(50)
    view.read([0])
    file = store_path / "part-00000" / "tokens.npy"
    file.unlink()
    file.mkdir()
    with pytest.raises(ReadError, match="EISDIR") as caught:
        view.read([0])
    assert caught.value.filename == str(file)


def test_descriptors_are_bounded_and_given_back(tmp_path):
    make_documents([50] * 300).write(tmp_path / "store", shard_bytes=1)

    def count_open() -> int:
        links = [Path("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
        return sum(link.is_symlink() and str(link.readlink()).startswith(str(tmp_path)) for link in links)

    for backend in ("pread", "mmap"):
        store = open_store(tmp_path / "store", open_files=20, backend=backend)
        assert len(store.shards) == 300
        view = store.windows(50, columns=["frame"], spans=["documents"])
        view.read(np.arange(len(view)))
        assert count_open() == 20
        del store, view
        assert count_open() == 0


def test_too_many_open_files(store_path):
    """Descriptors run out before our own bound is reached: an error that says so, and then it works again."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    view = tokenfeed.open(store_path).windows(50)
    next_free = os.dup(0)
    os.close(next_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (next_free, hard))
    try:
        with pytest.raises(ReadError, match="EMFILE"):
            view.read(np.arange(len(view)))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    view.read(np.arange(len(view)))
