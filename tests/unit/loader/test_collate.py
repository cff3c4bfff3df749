"""Padding: every document in its row, and nothing else under the mask."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tokenfeed
from golden import golden_tokenizer
from tokenfeed.errors import ArgumentError
from tokenfeed.loader.collate import pad, pairs


@given(
    multiple_of=st.integers(1, 70),
    max_length=st.one_of(st.none(), st.integers(1, 500)),
    truncate=st.sampled_from(["end", "start"]),
    indices=st.lists(st.integers(0, 119), max_size=12),
)
def test_rows_are_documents(store_path, plain, multiple_of, max_length, truncate, indices):
    documents = tokenfeed.open(store_path).documents(columns=["frame"])
    padded = pad(multiple_of=multiple_of, max_length=max_length, truncate=truncate, value=7)(documents.read(indices))
    width = padded.mask.shape[1]
    assert width % multiple_of == 0
    assert width < max(padded.lengths, default=0) + multiple_of
    for row, index in enumerate(indices):
        tokens = plain.documents[index].tokens
        limit = len(tokens) if max_length is None else max_length
        kept = tokens[:limit] if truncate == "end" else tokens[max(0, len(tokens) - limit) :]
        np.testing.assert_array_equal(padded.columns["tokens"][row, : len(kept)], kept)
        assert (padded.columns["tokens"][row, len(kept) :] == 7).all()
        assert padded.mask[row].sum() == padded.lengths[row] == len(kept)
        assert padded.columns["frame"].shape == (len(indices), width, 2, 3)


@pytest.mark.parametrize("prefetch", [0, 4])
def test_an_error_of_collate_says_of_which_samples(store_path, tmp_path, prefetch):
    """Its type and its words stay; the note says which rows to look at."""

    def collate(batch):
        if 5 in batch.samples:
            raise LookupError("no such label")

    (tmp_path / "text.jsonl").write_text('{"text": "a"}\n' * 50)
    options = {"collate": collate, "prefetch": prefetch, "rank": 0, "world_size": 1}
    view = tokenfeed.open(store_path).windows(16)
    mixture = tokenfeed.mix({"web": (view, 0.5), "code": (view, 0.5)})
    text, tokenizer = tmp_path / "text.jsonl", golden_tokenizer("tiktoken")
    for loader, where in [
        (tokenfeed.Loader(view, 2, **options), r"samples 4, 5 of the run: \d+, \d+ of the view"),
        (tokenfeed.Loader(mixture, 2, **options), r"samples 4, 5 of the run: (web|code) \d+, \w+ \d+ of the view"),
        (tokenfeed.stream(text, tokenizer, batch_size=2, length=8, val=None, **options), "samples 4, 5 of the run$"),
    ]:
        with pytest.raises(LookupError, match="no such label") as caught, loader:
            for _ in range(4):
                next(loader)
        assert re.search(f"in collate, of {where}", caught.value.__notes__[0])


def test_what_cannot_be_padded(store_path):
    store = tokenfeed.open(store_path)
    longest = int(np.argmax([len(store.documents()[number].tokens) for number in range(120)]))
    with pytest.raises(ArgumentError, match=f"document {longest} has"):
        pad(max_length=5, truncate="error")(store.documents().read([0, longest]))
    with pytest.raises(ArgumentError, match="only documents"):
        pad()(store.windows(5).read([0]))
    for bad in ({"multiple_of": 0}, {"max_length": 0}, {"truncate": "middle"}):
        with pytest.raises(ArgumentError):
            pad(**bad)


def test_in_a_loader(store_path):
    loader = tokenfeed.Loader(tokenfeed.open(store_path).documents(), 6, collate=pad(multiple_of=8))
    batch = next(loader)
    assert batch.data.mask.shape == batch.data.columns["tokens"].shape
    assert batch.data.lengths.tolist() == batch.lengths.tolist()


def test_pairs_come_side_by_side(tmp_path):
    """Both sides have one width, rows of one pair the same place; padding is not learned."""
    columns = {"tokens": "uint16", "loss_mask": "bool"}
    with tokenfeed.Writer(tmp_path / "s", columns=columns, spans={"documents": None, "sides": "utf8"}) as writer:
        for number in range(9):
            for side, add, count in (("chosen", writer.append, number + 1), ("rejected", writer.extend, 9 - number)):
                add({"tokens": [100 + number] * count, "loss_mask": [True] * count}, sides=side)
    store = tokenfeed.open(tmp_path / "s")
    batch = next(tokenfeed.Loader(store.documents(), batch_size=4, collate=pairs(multiple_of=4, value=7)))
    chosen, rejected = batch.data
    assert chosen.columns["tokens"].shape == rejected.columns["tokens"].shape
    assert chosen.lengths.tolist() == (batch.indices + 1).tolist()
    assert rejected.lengths.tolist() == (9 - batch.indices).tolist()
    for side in (chosen, rejected):
        np.testing.assert_array_equal(side.columns["loss_mask"], side.mask)
        assert (side.columns["tokens"] == np.where(side.mask, 100 + batch.indices[:, None], 7)).all()
    short = pairs(max_length=3)(store.documents()[:]).chosen
    assert short.lengths.tolist() == [1, 2, *[3] * 7]
    store.pack(20)
    rows = store.packed(20)[:]
    assert (np.diff(rows.spans_of("sides").offsets) % 2 == 0).all()
    for view in (store.packed(20), store.windows(4)):
        with pytest.raises(ArgumentError, match="pairs are documents of a store of preference pairs"):
            pairs()(view[:2])
