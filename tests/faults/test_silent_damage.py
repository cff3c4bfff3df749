"""Damage beyond single bits where reading is verified: swapped and cut files, servers and caches that lie."""

import contextlib
import itertools
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

import tokenfeed
from bits import PACKED, files_of, flip, is_read, read_everything, write_store
from tiers import slow
from tokenfeed.errors import ArgumentError, CorruptionError, TokenfeedError
from tokenfeed.kernels.checked import CHECKED_BYTES
from tokenfeed.storage import objects
from tokenfeed.store.verify import verify

SHARDS = [[4000, 0, 7000], [4000, 0, 7000]]
buckets = itertools.count()


@pytest.fixture
def path(tmp_path, monkeypatch):
    """Two shards whose files are of equal sizes, and a packing plan."""
    monkeypatch.setenv("TOKENFEED_CACHE", str(tmp_path / "cache"))
    write_store(tmp_path / "store", SHARDS, payload_bytes=9000)
    tokenfeed.open(tmp_path / "store").pack(PACKED)
    return tmp_path / "store"


def plan_of(path):
    return path / f".packed-documents-{PACKED}"


READING = [{"backend": "pread"}, *slow({"backend": "mmap"}, {"max_open_files": 0})]


@pytest.mark.parametrize("reading", READING)
def test_truncated_files(path, reading):
    for file in files_of(path):
        data = file.read_bytes()
        for size in {0, 1, len(data) // 2, len(data) - 1}:
            file.write_bytes(data[:size])
            with pytest.raises(TokenfeedError):
                read_everything(tokenfeed.open(path, verify=True, **reading), packed=plan_of(path))
            assert not verify(path).ok, (file, size)
        file.write_bytes(data)
    assert verify(path).ok


@pytest.mark.parametrize("reading", READING)
def test_blocks_of_a_file_that_changed_places(path, reading):
    for file in files_of(path):
        data = file.read_bytes()
        if len(data) < 3 * CHECKED_BYTES:
            continue
        first, second = data[CHECKED_BYTES : 2 * CHECKED_BYTES], data[2 * CHECKED_BYTES : 3 * CHECKED_BYTES]
        assert first != second
        file.write_bytes(data[:CHECKED_BYTES] + second + first + data[3 * CHECKED_BYTES :])
        with pytest.raises(CorruptionError, match=file.name):
            read_everything(tokenfeed.open(path, verify=True, **reading), packed=plan_of(path))
        problem = next(problem for problem in verify(path).problems if file.name in problem)
        assert "2 blocks of 4,096 bytes differ from the recorded checksum: 1, 2" in problem
        file.write_bytes(data)


@pytest.mark.parametrize("reading", READING)
def test_files_that_changed_places(path, reading):
    """Any two of a store, in one shard or in two."""
    truth = read_everything(tokenfeed.open(path), packed=plan_of(path))
    for one, other in itertools.combinations(files_of(path), 2):
        if one.name != other.name and one.stat().st_size != other.stat().st_size and "pack" not in one.name:
            continue  # another name and another size: found by the size alone, which is tested above
        contents = one.read_bytes(), other.read_bytes()
        one.write_bytes(contents[1])
        other.write_bytes(contents[0])
        delivered = None
        with contextlib.suppress(TokenfeedError):
            delivered = read_everything(tokenfeed.open(path, verify=True, **reading), packed=plan_of(path))
        assert delivered in (None, truth), (one, other)
        if contents[0] != contents[1]:
            assert delivered is None, (one, other)
            assert not verify(path).ok, (one, other)
        one.write_bytes(contents[0])
        other.write_bytes(contents[1])


def test_what_an_error_says(path):
    file = path / "part1-00000" / "tokens.npy"
    flip(file, 8 * (2 * CHECKED_BYTES + 17))
    with pytest.raises(CorruptionError) as caught:
        read_everything(tokenfeed.open(path, verify=True))
    for what in (str(file), "block 2", "[8,192, 12,288)", "shard.blocks.npy", "tokenfeed verify", "copy"):
        assert what in str(caught.value)
    (problem,) = verify(path).problems
    assert "1 block of 4,096 bytes differs from the recorded checksum: 2" in problem


def test_many_damaged_blocks_are_counted(path):
    file = path / "part1-00000" / "frame.npy"
    for block in range(3, 14):
        flip(file, 8 * block * CHECKED_BYTES)
    (problem,) = verify(path).problems
    assert "11 blocks of 4,096 bytes differ from the recorded checksum: 3, 4, 5, 6, 7, 8, 9, 10 and 3 more" in problem


def test_what_is_not_read_is_not_missed(path):
    """A row that touches no damaged block is delivered, one that does is not, and the output is left alone."""
    truth = tokenfeed.open(path).windows(1000).read([0, 5, 12]).tokens
    flip(path / "part0-00000" / "tokens.npy", 8 * (128 + 2 * 5500))
    view = tokenfeed.open(path, verify=True).windows(1000)
    np.testing.assert_array_equal(view.read([0, 12]).tokens, truth[[0, 2]])
    out = np.zeros((3, 1001), np.uint16)
    with pytest.raises(CorruptionError, match="block 2"):
        view.read([0, 5, 12], out=out)
    assert not out[1].any()
    np.testing.assert_array_equal(tokenfeed.open(path).windows(1000).read([0, 12]).tokens, truth[[0, 2]])


@pytest.mark.parametrize("prefetch", [0, 4])
def test_the_loader_passes_it_on(path, prefetch):
    flip(path / "part0-00000" / "tokens.npy", 8 * (128 + 2 * 5500))
    loader = tokenfeed.Loader(tokenfeed.open(path, verify=True).windows(100), batch_size=4, prefetch=prefetch, epochs=1)
    with pytest.raises(CorruptionError, match=r"part0-00000/tokens\.npy"):
        for _ in loader:
            pass


def test_a_mixture_checks_the_sources_that_were_opened_so(path, tmp_path):
    """Whichever comes first in it."""
    write_store(tmp_path / "other", SHARDS, seed=1)
    flip(path / "part0-00000" / "tokens.npy", 8 * (128 + 2 * 5500))
    flip(tmp_path / "other" / "part0-00000" / "tokens.npy", 8 * (128 + 2 * 5500))
    views = {
        "checked": tokenfeed.open(path, verify=True).windows(100),
        "not": tokenfeed.open(tmp_path / "other").windows(100),
    }
    for names in (["checked", "not"], ["not", "checked"]):
        mixture = tokenfeed.mix({name: (views[name], 0.5) for name in names})
        with pytest.raises(CorruptionError, match=r"store/part0-00000/tokens\.npy"):
            for _ in itertools.islice(tokenfeed.Loader(mixture, batch_size=10), 100):
                pass
    mixture = tokenfeed.mix({"not": (views["not"], 1.0)})
    assert len(list(itertools.islice(tokenfeed.Loader(mixture, batch_size=10), 50))) == 50


def test_packing_reads_what_was_written(path):
    flip(path / "part0-00000" / "documents.starts.npy", 8 * (128 + 17))
    with pytest.raises(CorruptionError, match=r"documents\.starts\.npy"):
        tokenfeed.open(path, verify=True).pack(PACKED, cache=path.parent / "plan")


def test_a_combined_store(path, tmp_path):
    tokenfeed.combine([path, path], tmp_path / "both")
    tokenfeed.open(tmp_path / "both", verify=True).windows(1000).read([0])
    flip(tmp_path / "both" / "manifest.json", 8 * 40)
    with pytest.raises(CorruptionError, match=r"both/manifest\.json"):
        tokenfeed.open(tmp_path / "both", verify=True)
    assert not verify(tmp_path / "both").ok
    flip(tmp_path / "both" / "manifest.json", 8 * 40)
    flip(path / "part1-00000" / "tokens.npy", 8 * 5000)
    view = tokenfeed.open(tmp_path / "both", verify=True).windows(1000)
    with pytest.raises(CorruptionError, match=r"part1-00000/tokens\.npy"):
        view.read(np.arange(len(view)))


def test_files_of_other_systems_are_refused(path, tmp_path):
    np.save(tmp_path / "tokens.npy", np.arange(100, dtype=np.uint16))
    for given in (tmp_path / "tokens.npy", [tmp_path / "tokens.npy"]):
        tokenfeed.open(given)
        with pytest.raises(ArgumentError, match=r"tokens\.npy .* no checksums to verify\. Open it without verify=True"):
            tokenfeed.open(given, verify=True)
    tokenfeed.combine([tmp_path / "tokens.npy"], tmp_path / "all")
    with pytest.raises(ArgumentError, match="no checksums to verify"):
        tokenfeed.open(tmp_path / "all", verify=True)


def test_a_changed_manifest_is_signed_by_sealing(path):
    manifest = path / "manifest.json"
    manifest.write_text(manifest.read_text().replace("\\u00e9", "e"))
    assert tokenfeed.open(path).provenance == {"of": "e"}
    with pytest.raises(CorruptionError, match=r"manifest\.json has changed since it was written.*tokenfeed\.seal"):
        tokenfeed.open(path, verify=True)
    tokenfeed.seal(path)
    assert tokenfeed.open(path, verify=True).provenance == {"of": "e"}
    assert verify(path).ok


def test_descriptors_are_bounded(path):
    def count_open():
        links = [Path("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
        return sum(link.is_symlink() and str(link.readlink()).startswith(str(path)) for link in links)

    store = tokenfeed.open(path, verify=True, max_open_files=3)
    read_everything(store)
    assert count_open() == 3
    del store
    assert count_open() == 0


def test_a_header_longer_than_a_block(tmp_path):
    dtype = np.dtype([(f"a_field_with_a_long_name_{number:04d}", "<u2") for number in range(200)])
    values = np.random.default_rng(0).integers(0, 2**16, (50, 200)).astype("<u2").view(dtype).reshape(-1)
    with tokenfeed.Writer(tmp_path / "store", columns={"tokens": dtype}) as writer:
        writer.append({"tokens": values})
    store = tmp_path / "store"
    assert verify(store).ok
    np.testing.assert_array_equal(tokenfeed.open(store, verify=True).windows(50, extra=0)[0].tokens, values)
    (file,) = store.glob("*/tokens.npy")
    for byte in range(0, file.stat().st_size, 97):
        flip(file, 8 * byte)
        assert not verify(store).ok
        with pytest.raises(CorruptionError):
            tokenfeed.open(store, verify=True).windows(50, extra=0)[0].tokens  # noqa: B018
        flip(file, 8 * byte)


def upload(path):
    """The same store, elsewhere."""
    home = f"memory://verified-{next(buckets)}/store"
    for file in files_of(path):
        if not file.parent.name.startswith("."):
            objects.write(f"{home}/{file.relative_to(path)}", file.read_bytes())
    for file in path.rglob("*.bin"):
        objects.write(f"{home}/{file.relative_to(path)}", file.read_bytes())
    return home


@pytest.mark.parametrize("block_bytes", [512, *slow(4096, 65536)])
def test_a_bit_that_flipped_on_a_server(path, block_bytes):
    home = upload(path)
    truth = read_everything(tokenfeed.open(path))
    how = tokenfeed.Remote(block_bytes=block_bytes, request_bytes=1 << 20)
    assert read_everything(tokenfeed.open(home, verify=True, remote=how)) == truth
    rng = np.random.default_rng(block_bytes)
    for file in files_of(path):
        if file.parent.name.startswith("."):
            continue
        uri, data = f"{home}/{file.relative_to(path)}", bytearray(file.read_bytes())
        place = int(rng.integers(0, len(data)))
        data[place] ^= 1 << int(rng.integers(0, 8))
        objects.write(uri, bytes(data))
        assert not verify(home).ok, (file, place)
        delivered = None
        with contextlib.suppress(TokenfeedError):
            delivered = read_everything(tokenfeed.open(home, verify=True, remote=how))
        if delivered is not None:  # a header, or the sum of one
            assert delivered == truth, (file, place)
            assert not is_read(file) or (file.name == "shard.blocks.npy" and place < 128), (file, place)
        objects.write(uri, file.read_bytes())


def test_a_cache_on_disk_that_was_given_damaged_blocks(path, tmp_path):
    """Blocks of a server that lied once: they are fetched again, and replaced on disk."""
    home = upload(path)
    truth = read_everything(tokenfeed.open(path))
    how = tokenfeed.Remote(cache=tmp_path / "blocks")
    uri, data = f"{home}/part0-00000/tokens.npy", (path / "part0-00000" / "tokens.npy").read_bytes()
    objects.write(uri, data[:9000] + b"?" + data[9001:])
    store = tokenfeed.open(home, remote=how)
    assert read_everything(store) != truth
    store.windows(32).reader.close()
    with pytest.raises(CorruptionError, match="block 2"):
        read_everything(tokenfeed.open(home, verify=True, remote=how))
    objects.write(uri, data)
    store = tokenfeed.open(home, verify=True, remote=how)
    assert read_everything(store) == truth
    store.windows(32).reader.close()
    assert read_everything(tokenfeed.open(home, remote=how)) == truth
    shutil.rmtree(tmp_path / "blocks")


def test_a_loader_over_a_server(path):
    home = upload(path)
    flip(path / "part0-00000" / "tokens.npy", 8 * 9000)
    objects.write(f"{home}/part0-00000/tokens.npy", (path / "part0-00000" / "tokens.npy").read_bytes())
    loader = tokenfeed.Loader(tokenfeed.open(home, verify=True).windows(100), batch_size=4, epochs=1)
    with pytest.raises(CorruptionError, match=r"part0-00000/tokens\.npy is damaged in block 2"):
        for _ in loader:
            pass
