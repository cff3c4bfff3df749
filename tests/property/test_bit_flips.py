"""A bit that flips in any file of any store is found by `verify`, and never delivered where reading is verified."""

import contextlib
import tempfile
from pathlib import Path

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import tokenfeed
from bits import PACKED, files_of, flip, is_read, read_everything, write_store
from tiers import pick
from tokenfeed.errors import TokenfeedError
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
READING = st.sampled_from(
    [{"backend": "pread"}, {"backend": "mmap"}, {"max_open_files": 0}, {"max_open_files": 2, "reads_in_flight": 1}]
)
PHASES = [Phase.explicit, Phase.reuse, Phase.generate]  # shrinking takes minutes, and what was flipped is named anyway


@given(STORES, READING, st.data())
@settings(max_examples=pick(3, max(6, settings().max_examples // 10)), phases=PHASES)
def test_a_flipped_bit_is_found_and_never_delivered(described, reading, data):
    """Every file of the store, one random bit of each at a time."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "store")
        write_store(path, **described)
        plan = tokenfeed.open(path, split="all").pack(PACKED).folder
        assert verify(path).problems == []
        truth = read_everything(tokenfeed.open(path, split="all"), packed=plan)
        assert read_everything(tokenfeed.open(path, split="all", verify=True, **reading), packed=plan) == truth
        for file in files_of(path):
            bit = data.draw(st.integers(0, 8 * file.stat().st_size - 1), label=file.name)
            flip(file, bit)
            assert not verify(path).ok, (file, bit)
            delivered = None
            with contextlib.suppress(TokenfeedError):
                delivered = read_everything(tokenfeed.open(path, split="all", verify=True, **reading), packed=plan)
            flip(file, bit)
            if delivered is not None:
                assert delivered == truth, (file, bit)
                assert not is_read(file), (file, bit)
        assert verify(path).ok
        assert read_everything(tokenfeed.open(path, split="all", verify=True, **reading), packed=plan) == truth


@given(STORES, READING, st.data())
@settings(max_examples=pick(3, max(6, settings().max_examples // 10)), phases=PHASES)
def test_a_bit_that_flips_under_a_reader(described, reading, data):
    """Everything was read once already. What is in memory stays right; what is read again is checked again."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "store")
        write_store(path, **described)
        plan = tokenfeed.open(path, split="all").pack(PACKED).folder
        store = tokenfeed.open(path, split="all", verify=True, **reading)
        truth = read_everything(store, packed=plan)
        for file in files_of(path):
            bit = data.draw(st.integers(0, 8 * file.stat().st_size - 1), label=file.name)
            flip(file, bit)
            delivered = None
            with contextlib.suppress(TokenfeedError):
                delivered = read_everything(store, packed=plan)
            flip(file, bit)
            if delivered is not None:
                assert delivered == truth, (file, bit)
                assert is_in_memory(file), (file, bit)
        assert read_everything(store, packed=plan) == truth


def is_in_memory(file: Path) -> bool:
    """What is read once, when it is opened, or not at all: JSON, span tables this small, and the sums of those."""
    kept = ("starts", "anchors", "offsets", "blocks")
    return file.suffix == ".json" or not is_read(file) or file.name.split(".")[-2] in kept


@pytest.mark.parametrize("name", ["manifest.json", "part0-00000/shard.json", f".packed-documents-{PACKED}/pack.json"])
@pytest.mark.parametrize("seal", [True, False])
def test_bits_of_the_json_files(tmp_path, name, seal):
    """Every fifth; every 37th in the fast tier."""
    write_store(tmp_path / "store", [[5, 3], [7]], splits=("é".encode().hex(), "val"), seal=seal)
    tokenfeed.open(tmp_path / "store", split="all").pack(PACKED)
    file = tmp_path / "store" / name
    for bit in range(0, 8 * file.stat().st_size, pick(37, 5)):
        flip(file, bit)
        with pytest.raises(TokenfeedError):
            tokenfeed.open(tmp_path / "store", split="all", verify=True).packed(PACKED)
        if bit % 11 == 0:
            assert not verify(tmp_path / "store").ok
        flip(file, bit)
    tokenfeed.open(tmp_path / "store", split="all", verify=True).packed(PACKED)
