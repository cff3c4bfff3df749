"""Tokenizers of every kind on both roads: streams that resume, stores that hold the same tokens, spans and the page."""

import json

import numpy as np
import pytest

import tokenfeed
from any_tokenizers import make, texts, write
from tokenfeed.errors import ArgumentError, PlanMismatchError
from tokenfeed.preparation.mapping import Characters
from tokenfeed.text.tokenizer.tokenizer import Tokenizer
from tokenfeed.ui.samples import show_tokens

KINDS = ["llama", "t5", "bert", "neox"]


@pytest.fixture(scope="module", params=KINDS)
def opened(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("roads")
    (folder / "text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts()))
    return folder, request.param, Tokenizer.load(write(request.param, folder / "tokenizer"))


def test_a_stream_resumes_exactly(opened, tmp_path):
    folder, _, tokenizer = opened
    options = {"batch_size": 2, "length": 64, "split": "all", "buffer_size": 10}
    with tokenfeed.stream(folder / "text.jsonl", folder / "tokenizer", **options) as feed:
        rows = [next(feed) for _ in range(6)]
        states = [rows[2].state]
    with tokenfeed.stream(folder / "text.jsonl", tokenizer, **options, threads=1) as feed:
        feed.load_state_dict(states)
        for expected in rows[3:]:
            np.testing.assert_array_equal(next(feed).inputs, expected.inputs)
    assert (rows[0].inputs[:, 0] == tokenizer.bos_id).all()
    other = Tokenizer.load(write("digits", tmp_path))
    with (
        tokenfeed.stream(folder / "text.jsonl", other, **options) as feed,
        pytest.raises(PlanMismatchError, match="the checkpoint was made with different tokenizer"),
    ):
        feed.load_state_dict(states)


def test_a_store_holds_the_tokens_of_the_library(opened, tmp_path):
    folder, kind, tokenizer = opened
    report = tokenfeed.prepare(
        folder / "text.jsonl", tmp_path / "store", tokenizer=folder / "tokenizer", val=None, workers=0
    )
    store = tokenfeed.open(tmp_path / "store")
    theirs = make(kind)
    for sample, text in zip(store.documents(), texts(), strict=True):
        assert sample.tokens.tolist() == [1, *theirs.encode(text, add_special_tokens=False).ids]
    assert store.tokenizer == tokenizer.identity()
    assert report.total.tokens == store.num_items


def test_spans_of_characters_and_the_page(opened):
    _, kind, tokenizer = opened
    text = "the same Größe twice"
    tokens = tokenizer.encode(text, prepend="<s>")
    spans = Characters([(9, 14, "size")])
    if kind == "bert":  # which drops spaces and changes letters
        with pytest.raises(ArgumentError, match=r"this tokenizer changes texts.*Give ranges of tokens"):
            spans.to_tokens(text, tokenizer.count_bytes(tokens))
    elif kind != "t5":  # to which some letters are unknown
        [(start, stop, payload)] = spans.to_tokens(text, tokenizer.count_bytes(tokens))
        assert tokenizer.decode(tokens[start:stop]).strip(" esamtwic") == "Größ"
        assert payload == "size"
    shown = show_tokens(tokens, tokenizer)
    assert shown[0] == [1, "<s>", 1]
    assert [number for number, _, _ in shown] == tokens.tolist()
