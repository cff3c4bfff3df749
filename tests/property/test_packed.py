"""Packing over random stores: every item once, rows as the plain twin makes them, and read as plain slices are."""

import itertools
import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tokenfeed
from opening import open_store
from plain import make_documents
from tokenfeed.store import packing

LENGTHS = st.lists(st.one_of(st.integers(0, 20), st.integers(0, 300), st.integers(0, 3000)), max_size=60)
SHARD_BYTES = st.sampled_from([1, 100, 5_000, 1 << 30])
WIDTHS = st.one_of(st.integers(2, 12), st.integers(2, 400), st.sampled_from([64, 65, 128, 129, 4096, 4097, 5000]))
BLOCKS = st.sampled_from([16, 32, packing.BLOCK_DOCUMENTS])
SLICES = st.sampled_from([16, 48, packing._SLICE])
READING = st.fixed_dictionaries(
    {
        "backend": st.sampled_from(["pread", "mmap"]),
        "open_files": st.sampled_from([None, 0, 1, 7]),
    }
)


@pytest.fixture(autouse=True)
def no_sync(monkeypatch):
    """A plan is made safe against power cuts, which takes longer than all else here."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)


def pack_plainly(lengths, width, block_documents):
    """Rows as lists of (document, first item in it, items), by looking at every row for every piece."""
    packed = []
    for block in range(0, len(lengths), block_documents):
        documents = range(block, min(len(lengths), block + block_documents))
        packed += [
            [(document, turn * width, width)] for document in documents for turn in range(lengths[document] // width)
        ]
        pieces = [(-(lengths[document] % width), document) for document in documents if lengths[document] % width]
        rows, changed = [], []
        for time, (negative, document) in enumerate(sorted(pieces)):
            length = -negative
            used = [sum(piece[2] for piece in row) for row in rows]
            fitting = [(used[row], changed[row], row) for row in range(len(rows)) if used[row] + length <= width]
            if fitting:
                row = max(fitting)[2]
            else:
                row = len(rows)
                rows.append([])
                changed.append(time)
            rows[row].append((document, lengths[document] - length, length))
            changed[row] = time
        packed += rows
    return packed


@given(LENGTHS, SHARD_BYTES, READING, WIDTHS, BLOCKS, SLICES, st.data())
def test_rows_are_those_of_the_plain_twin(lengths, shard_bytes, reading, width, block, size, data):
    plain = make_documents(lengths)
    tokens, frames = plain.tokens, plain.frames()
    starts = np.concatenate(([0], np.cumsum(lengths))).astype(int)
    expected = pack_plainly(lengths, width, block)
    before, seen = (packing.BLOCK_DOCUMENTS, packing._SLICE), []
    with tempfile.TemporaryDirectory() as folder:
        plain.write(Path(folder, "store"), shard_bytes=shard_bytes)
        store = open_store(Path(folder, "store"), **reading)
        packing.BLOCK_DOCUMENTS, packing._SLICE = block, size
        try:
            report = store.pack(width - 1, cache=Path(folder, "plan"), progress=lambda *told: seen.append(told))
        finally:
            packing.BLOCK_DOCUMENTS, packing._SLICE = before
        assert seen == sorted(seen)
        assert not any(lengths[-1:]) or seen[-1] == (len(lengths), len(lengths))
        assert report.rows == len(expected)
        assert report.items == len(tokens)
        assert report.documents == sum(length > 0 for length in lengths)
        assert report.cut_documents == sum(length > width for length in lengths)
        assert report.used == (len(tokens) / (len(expected) * width) if expected else 1.0)

        columns = data.draw(st.sampled_from([(), ("frame",)]))
        view = store.packed(width - 1, columns=columns, cache=Path(folder, "plan"))
        indices = data.draw(st.permutations(range(len(view)))) if len(view) <= 50 else list(range(len(view)))
        batch = view.read(indices)
        assert batch.tokens.shape == (len(indices), width)
        for row, index in enumerate(indices):
            pieces = expected[index]
            items = np.concatenate([np.arange(starts[d] + first, starts[d] + first + n) for d, first, n in pieces])
            np.testing.assert_array_equal(batch.tokens[row, : items.size], tokens[items])
            np.testing.assert_array_equal(batch.column("frame")[row, : items.size], frames[items])
            assert not batch.tokens[row, items.size :].any()
            assert not batch.column("frame")[row, items.size :].any()
            bounds = np.cumsum([0, *(n for _, _, n in pieces)]).tolist()
            spans = [(span.number, span.start, span.stop) for span in batch.spans["documents"][row]]
            assert spans == [(d, bounds[i], bounds[i + 1]) for i, (d, _, _) in enumerate(pieces)]
            mask = np.zeros(width, bool)
            for start, stop in itertools.pairwise(bounds):
                mask[start : stop - 1] = True
            np.testing.assert_array_equal(batch.loss_mask[row], mask[:-1])
            covered = np.concatenate(
                [np.empty(0, int), *(np.arange(span.start, span.stop) for span in batch.spans["concepts"][row])]
            )
            np.testing.assert_array_equal(covered, np.arange(items.size))
            assert sum(place.stop - place.start for place in view.locate(index)) == items.size


@given(LENGTHS, SHARD_BYTES, WIDTHS)
def test_every_item_is_in_one_row(lengths, shard_bytes, width):
    """Also what comes of a cut document is in order; and the plan made again is the same to the byte."""
    total = sum(lengths)
    with tempfile.TemporaryDirectory() as folder:
        with tokenfeed.Writer(
            Path(folder, "store"),
            columns={"tokens": "uint32"},
            spans={"documents": None},
            shard_bytes=shard_bytes,
            sync=False,
        ) as writer:
            for start, length in zip(np.cumsum([0, *lengths]), lengths, strict=False):
                writer.append({"tokens": np.arange(start + 1, start + 1 + length, dtype=np.uint32)})
        store = tokenfeed.open(Path(folder, "store"))
        files = []
        for name in ("one", "two"):
            report = store.pack(width - 1, cache=Path(folder, name))
            files.append({path.name: path.read_bytes() for path in report.folder.iterdir()})
        assert files[0] == files[1]
        view = store.packed(width - 1, cache=Path(folder, "one"))
        batch = view.read(range(len(view)))
        flat = batch.tokens.reshape(-1)
        np.testing.assert_array_equal(np.sort(flat[flat > 0]), np.arange(1, total + 1))
        numbers = batch.span_numbers("documents").reshape(-1)
        for number, length in enumerate(lengths):
            own = flat[numbers == number].astype(np.int64)
            assert own.size == length
            assert (np.diff(own) == 1).all()
        assert view.samples_touching(range(len(lengths))).size == len(view)
