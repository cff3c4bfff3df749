"""A bit that flips in any file of any store is found by `verify`."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import tokenfeed
from bits import PACKED, files_of, flip, write_store
from tiers import pick
from tokenfeed.store.verify import verify

LENGTHS = st.lists(st.one_of(st.integers(0, 30), st.integers(0, 3000)), min_size=1, max_size=6)
STORES = st.fixed_dictionaries(
    {
        "shards": st.lists(LENGTHS, min_size=1, max_size=3),
        "payload_bytes": st.sampled_from([1, 12, 6000]),
        "splits": st.sampled_from([(None,), ("train", "val")]),
        "seal": st.booleans(),
        "seed": st.integers(0, 99),
    }
)
PHASES = [Phase.explicit, Phase.reuse, Phase.generate]  # shrinking takes minutes, and what was flipped is named anyway


@given(STORES, st.data())
@settings(max_examples=pick(3, max(6, settings().max_examples // 10)), phases=PHASES)
def test_a_flipped_bit_is_found(described, data):
    """Every file of the store, one random bit of each at a time."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "store")
        write_store(path, **described)
        tokenfeed.open(path, split="all").pack(PACKED)
        assert verify(path).problems == []
        for file in files_of(path):
            bit = data.draw(st.integers(0, 8 * file.stat().st_size - 1), label=file.name)
            flip(file, bit)
            assert not verify(path).ok, (file, bit)
            flip(file, bit)
        assert verify(path).ok


@pytest.mark.parametrize("name", ["manifest.json", "part0-00000/shard.json", f".packed-documents-{PACKED}/pack.json"])
@pytest.mark.parametrize("seal", [True, False])
def test_bits_of_the_json_files(tmp_path, name, seal):
    """Every fifth; every 37th in the fast tier."""
    write_store(tmp_path / "store", [[5, 3], [7]], splits=("é".encode().hex(), "val"), seal=seal)
    tokenfeed.open(tmp_path / "store", split="all").pack(PACKED)
    file = tmp_path / "store" / name
    for bit in range(0, 8 * file.stat().st_size, pick(37, 5)):
        flip(file, bit)
        assert not verify(tmp_path / "store").ok
        flip(file, bit)
    assert verify(tmp_path / "store").ok
