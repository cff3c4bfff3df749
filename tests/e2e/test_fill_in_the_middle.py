"""`examples/fill_in_the_middle`: every token of a document once; the same for a sample, whatever delivers it."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

import tokenfeed

EXAMPLE = Path(__file__).parents[2] / "examples" / "fill_in_the_middle/collate.py"
BOS, PREFIX, SUFFIX, MIDDLE = 1, 3, 4, 5


@pytest.fixture
def store(tmp_path):
    with tokenfeed.Writer(tmp_path / "store", columns={"tokens": "uint16"}, spans={"documents": None}) as writer:
        for number in range(40):
            writer.append({"tokens": [BOS, *range(100 + number, 100 + 2 * number)]})
    return tmp_path / "store"


@pytest.fixture
def collate():
    spec = importlib.util.spec_from_file_location("fill_in_the_middle", EXAMPLE)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    return example.fill_in_the_middle(PREFIX, SUFFIX, MIDDLE, bos=BOS)


def rows_of(batch):
    tokens, lengths, mask = batch.data.columns["tokens"], batch.data.lengths, batch.data.mask
    assert (mask.sum(axis=1) == lengths).all()
    return [row[:length].tolist() for row, length in zip(tokens, lengths, strict=True)]


def undo(row):
    """The document that was turned around, by a plain reading of it."""
    if PREFIX not in row:
        return row
    assert row[:2] == [BOS, PREFIX]
    suffix, middle = row.index(SUFFIX), row.index(MIDDLE)
    return [BOS, *row[2:suffix], *row[middle + 1 :], *row[suffix + 1 : middle]]


def test_documents_are_turned_around(store, collate):
    documents = tokenfeed.open(store).documents()
    loader = tokenfeed.Loader(documents, batch_size=8, prefetch=0, collate=collate, rank=0, world_size=1)
    turned = 0
    for _ in range(25):
        batch = next(loader)
        for row, index in zip(rows_of(batch), batch.indices.tolist(), strict=True):
            assert undo(row) == documents[index].tokens.tolist()
            turned += PREFIX in row
    assert 70 < turned < 130


def test_rows_follow_from_the_sample_alone(store, collate):
    """Resumes, ranks and batch sizes change nothing; epochs do."""
    documents, made, by_document = tokenfeed.open(store).documents(), {}, {}
    loader = tokenfeed.Loader(documents, 4, seed=3, prefetch=0, collate=collate, rank=0, world_size=1)
    batches = [next(loader) for _ in range(25)]
    for batch in batches:
        rows = rows_of(batch)
        made |= dict(zip(batch.samples.tolist(), rows, strict=True))
        for index, row in zip(batch.indices.tolist(), rows, strict=True):
            by_document.setdefault(index, []).append(row)
    assert any(first != second for first, second, *_ in by_document.values())
    for rank in range(3):
        with tokenfeed.Loader(documents, 2, seed=3, rank=rank, world_size=3, collate=collate) as other:
            other.load_state_dict(batches[4].state)
            for _ in range(6):
                batch = next(other)
                assert rows_of(batch) == [made[sample] for sample in batch.samples.tolist()]


def test_the_program(store):
    command = [sys.executable, EXAMPLE, store, *map(str, (PREFIX, SUFFIX, MIDDLE))]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert printed.startswith("[[")
    assert f" {SUFFIX} " in printed
