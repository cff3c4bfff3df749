"""Damage beyond single bits, as `verify` finds it: swapped and cut files, and a server that lies."""

import itertools

import numpy as np
import pytest

import tokenfeed
from bits import PACKED, files_of, flip, read_everything, write_store
from tokenfeed.format.layout import CHECKED_BYTES
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


def test_blocks_of_a_file_that_changed_places(path):
    for file in files_of(path):
        data = file.read_bytes()
        if len(data) < 3 * CHECKED_BYTES:
            continue
        first, second = data[CHECKED_BYTES : 2 * CHECKED_BYTES], data[2 * CHECKED_BYTES : 3 * CHECKED_BYTES]
        assert first != second
        file.write_bytes(data[:CHECKED_BYTES] + second + first + data[3 * CHECKED_BYTES :])
        problem = next(problem for problem in verify(path).problems if file.name in problem)
        assert "2 blocks of 4,096 bytes differ from the recorded checksum: 1, 2" in problem
        file.write_bytes(data)


def test_files_that_changed_places(path):
    """Any two of a store, in one shard or in two."""
    for one, other in itertools.combinations(files_of(path), 2):
        if one.name != other.name and one.stat().st_size != other.stat().st_size and "pack" not in one.name:
            continue  # another name and another size: found by the size alone, which is tested above
        contents = one.read_bytes(), other.read_bytes()
        one.write_bytes(contents[1])
        other.write_bytes(contents[0])
        if contents[0] != contents[1]:
            assert not verify(path).ok, (one, other)
        one.write_bytes(contents[0])
        other.write_bytes(contents[1])


def test_damaged_blocks_are_named_and_counted(path):
    flip(path / "part1-00000" / "tokens.npy", 8 * (2 * CHECKED_BYTES + 17))
    (problem,) = verify(path).problems
    assert "part1-00000/tokens.npy" in problem
    assert "1 block of 4,096 bytes differs from the recorded checksum: 2" in problem
    flip(path / "part1-00000" / "tokens.npy", 8 * (2 * CHECKED_BYTES + 17))
    file = path / "part1-00000" / "frame.npy"
    for block in range(3, 14):
        flip(file, 8 * block * CHECKED_BYTES)
    (problem,) = verify(path).problems
    assert "11 blocks of 4,096 bytes differ from the recorded checksum: 3, 4, 5, 6, 7, 8, 9, 10 and 3 more" in problem


def test_a_combined_store(path, tmp_path):
    tokenfeed.combine([path, path], tmp_path / "both")
    assert verify(tmp_path / "both").ok
    flip(tmp_path / "both" / "manifest.json", 8 * 40)
    assert not verify(tmp_path / "both").ok
    flip(tmp_path / "both" / "manifest.json", 8 * 40)
    flip(path / "part1-00000" / "tokens.npy", 8 * 5000)
    assert any("part1-00000/tokens.npy" in problem for problem in verify(tmp_path / "both").problems)


def test_a_changed_manifest_is_signed_by_sealing(path):
    manifest = path / "manifest.json"
    manifest.write_text(manifest.read_text().replace("\\u00e9", "e"))
    assert tokenfeed.open(path).provenance == {"of": "e"}
    (problem,) = verify(path).problems
    assert "manifest.json has changed since it was written" in problem
    assert "tokenfeed.seal" in problem
    tokenfeed.seal(path)
    assert verify(path).ok


def test_a_header_longer_than_a_block(tmp_path):
    dtype = np.dtype([(f"a_field_with_a_long_name_{number:04d}", "<u2") for number in range(200)])
    values = np.random.default_rng(0).integers(0, 2**16, (50, 200)).astype("<u2").view(dtype).reshape(-1)
    with tokenfeed.Writer(tmp_path / "store", columns={"tokens": dtype}) as writer:
        writer.append({"tokens": values})
    store = tmp_path / "store"
    assert verify(store).ok
    np.testing.assert_array_equal(tokenfeed.open(store).windows(50, extra=0)[0].tokens, values)
    (file,) = store.glob("*/tokens.npy")
    for byte in range(0, file.stat().st_size, 97):
        flip(file, 8 * byte)
        assert not verify(store).ok
        flip(file, 8 * byte)


def test_a_bit_that_flipped_on_a_server(path):
    home = f"memory://verified-{next(buckets)}/store"
    files = [file for file in path.rglob("*.*") if file.is_file() and not file.parent.name.startswith(".")]
    for file in files:
        objects.write(f"{home}/{file.relative_to(path)}", file.read_bytes())
    assert read_everything(tokenfeed.open(home)) == read_everything(tokenfeed.open(path))
    rng = np.random.default_rng(0)
    for file in files:
        uri, data = f"{home}/{file.relative_to(path)}", bytearray(file.read_bytes())
        if data:
            place = int(rng.integers(0, len(data)))
            data[place] ^= 1 << int(rng.integers(0, 8))
            objects.write(uri, bytes(data))
            assert not verify(home).ok, (file, place)
            objects.write(uri, file.read_bytes())
    assert verify(home).ok
