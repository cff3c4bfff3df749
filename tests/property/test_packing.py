"""Packing kernels against the same rules written with lists."""

from itertools import islice

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tiers import examples
from tokenfeed.text.streaming.packer import Packer, Packing

BOS = 1


class Plain:
    """Documents as lists, oldest first; every rule as it is told."""

    def __init__(self, rule: str, width: int, buffer_size: int, source) -> None:
        self.rule = rule
        self.width = width
        self.buffer_size = buffer_size
        self.source = source
        self.waiting: list[list[int]] = []

    def row(self) -> list[int]:
        """The next row; empty where documents have ended."""
        row: list[int] = []
        while len(row) < self.width:
            while len(self.waiting) < self.buffer_size and (chunk := next(self.source, None)) is not None:
                self.waiting += chunk
            if not self.waiting:
                return row + [BOS] * (self.width - len(row)) if row else []
            remaining = self.width - len(row)
            fitting = [document for document in self.waiting if len(document) <= remaining]
            if self.rule == "split" and not row:
                chosen = self.waiting[0]
            elif fitting:
                chosen = max(fitting, key=len)  # the first of the longest
            elif self.rule == "pad" or (self.rule == "split" and remaining == 1):
                return row + [BOS] * remaining
            elif self.rule == "crop_oldest":
                chosen = self.waiting[0]
            else:
                long = [document for document in self.waiting if len(document) > self.width]
                chosen = long[0] if self.rule == "split" and long else min(self.waiting, key=len)
            self.waiting = [document for document in self.waiting if document is not chosen]
            row += chosen[:remaining]
            if len(chosen) > remaining and self.rule == "split":
                self.waiting.append([BOS, *chosen[remaining:]])
        return row


def documents_of(lengths, per_chunk):
    """Chunks of documents without end, all tokens different as far as they go."""
    number = 2
    while True:
        for first in range(0, len(lengths), per_chunk):
            chunk = []
            for length in lengths[first : first + per_chunk]:
                chunk.append([BOS, *range(number, number + length - 1)])
                number += length - 1
            yield chunk


def adder(packer, source):
    def refill():
        chunk = next(source, None)
        if chunk is None:
            return False
        offsets = np.cumsum([0, *map(len, chunk)])
        tokens = np.array([token for document in chunk for token in document], np.uint32)
        packer.add(tokens, offsets, np.zeros((len(chunk), 4), np.int64))
        return True

    return refill


@given(
    rule=st.sampled_from(["split", "crop", "crop_oldest", "pad"]),
    width=st.one_of(st.integers(2, 20), st.sampled_from([64, 65, 129, 4097])),
    lengths=st.lists(st.one_of(st.integers(1, 12), st.integers(1, 200)), min_size=1, max_size=40),
    per_chunk=st.integers(1, 9),
    buffer_size=st.integers(1, 15),
    rows_at_once=st.integers(1, 4),
)
@settings(max_examples=examples(400), deadline=None)
def test_best_fit_is_what_lists_give(rule, width, lengths, per_chunk, buffer_size, rows_at_once):
    if rule == "pad":
        lengths = [min(length, width) for length in lengths]
    plain = Plain(rule, width, buffer_size, documents_of(lengths, per_chunk))
    sizes = {"length": width - 1, "buffer_size": buffer_size}
    how = Packing.padding(**sizes) if rule == "pad" else Packing.choose("best_fit", rule, **sizes)
    packer = Packer(how, np.uint32, BOS)
    refill = adder(packer, documents_of(lengths, per_chunk))
    tokens = np.empty((rows_at_once, width), np.uint32)
    numbers = np.arange(rows_at_once)
    for _ in range(8):
        packer.fill(tokens, numbers, np.full(rows_at_once, width - 1), refill)
        assert tokens.tolist() == [plain.row() for _ in range(rows_at_once)]
        assert len(packer) == len(plain.waiting)


@given(
    rule=st.sampled_from(["split", "crop", "crop_oldest", "pad", "concat"]),
    width=st.one_of(st.integers(2, 20), st.sampled_from([64, 65])),
    lengths=st.lists(st.one_of(st.integers(1, 12), st.integers(1, 100)), max_size=40),
    per_chunk=st.integers(1, 9),
    buffer_size=st.integers(1, 15),
    rows_at_once=st.integers(1, 4),
)
@settings(max_examples=max(200, settings().max_examples), deadline=None)
def test_the_last_row_is_padded_where_documents_end(rule, width, lengths, per_chunk, buffer_size, rows_at_once):
    if rule == "pad":
        lengths = [min(length, width) for length in lengths]
    chunks = list(islice(documents_of(lengths, per_chunk), -(-len(lengths) // per_chunk)))
    if rule == "concat":
        flat = [token for chunk in chunks for document in chunk for token in document]
        expected = [flat[at : at + width] for at in range(0, max(0, len(flat) - 1), width - 1)]
    else:
        plain = Plain(rule, width, buffer_size, iter(chunks))
        expected = list(iter(plain.row, []))
    sizes = {"length": width - 1, "buffer_size": buffer_size}
    name, overflow = ("concat", "split") if rule == "concat" else ("best_fit", rule)
    how = Packing.padding(**sizes) if rule == "pad" else Packing.choose(name, overflow, **sizes)
    packer = Packer(how, np.uint32, BOS)
    refill = adder(packer, iter(chunks))
    tokens = np.empty((rows_at_once, width), np.uint32)
    made, count = [], rows_at_once
    while count == rows_at_once:
        pieces, count = packer.fill(tokens, np.arange(rows_at_once), np.full(rows_at_once, width - 1), refill)
        made += tokens[:count].tolist()
        assert (pieces[:, 0] < count).all()
        assert (pieces[:, 3] == 0).all()
    assert made == [row + [BOS] * (width - len(row)) for row in expected]
    assert packer.is_spent


@given(
    width=st.integers(2, 20),
    lengths=st.lists(st.integers(1, 50), min_size=1, max_size=30),
    per_chunk=st.integers(1, 9),
    advance=st.integers(0, 1),
)
@settings(deadline=None)
def test_concat_is_one_long_stream(width, lengths, per_chunk, advance):
    packer = Packer(Packing.choose("concat", "split", length=width - 1, buffer_size=1), np.uint32, BOS)
    refill = adder(packer, documents_of(lengths, per_chunk))
    chunks = documents_of(lengths, per_chunk)
    whole = [token for _ in range(400) for document in next(chunks) for token in document]
    tokens, at = np.empty((3, width), np.uint32), 0
    for _ in range(5):
        packer.fill(tokens, np.arange(3), np.full(3, width - 1 + advance), refill)
        for row in tokens.tolist():
            assert row == whole[at : at + width]
            at += width - 1 + advance


def test_split_bounds_how_long_a_document_waits():
    """With documents of all lengths, none waits for more rows than there are documents before it."""
    random = np.random.default_rng(0)
    packer = Packer(Packing.choose("best_fit", "split", length=63, buffer_size=100), np.uint32, BOS)
    added = 0
    longest_wait = 0
    arrived: dict[int, int] = {}
    row_number = 0

    def refill():
        nonlocal added
        lengths = random.integers(1, 90, 10)
        references = np.zeros((10, 4), np.int64)
        references[:, 2] = np.arange(added, added + 10)
        arrived.update((number, row_number) for number in range(added, added + 10))
        added += 10
        packer.add(np.full(lengths.sum(), 5, np.uint32), np.cumsum([0, *lengths]), references)
        return True

    rows = np.empty((1, 64), np.uint32)
    for row_number in range(3000):
        segments, _ = packer.fill(rows, np.array([0]), np.array([63]), refill)
        first_pieces = segments[segments[:, 6] == 0]
        waits = [row_number - arrived[number] for number in first_pieces[:, 5].tolist() if number in arrived]
        longest_wait = max([longest_wait, *waits])
    assert 0 < longest_wait <= 110
