"""Texts in pieces: the tokens are those of the whole text, wherever it was cut."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from golden import golden_tokenizer
from tiers import slow
from tokenfeed.preparation.long_texts import LongText, has_known_cuts
from tokenfeed.text.tokenizer.tokenizer import Tokenizer
from tokenfeed.text.tokenizer.vocabulary import PATTERNS, Vocabulary

LONGEST_RUN = 65_536
BYTE_LEVEL = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
ALL = {**PATTERNS, "byte level": BYTE_LEVEL}
OWN = r"\d+\.\d+|\p{L}+ ?|."  # matches across what the usual ones never do


def tokenizer(pattern):
    """Merges white space and letters freely, so that tokens differ wherever pieces of text do."""
    known = golden_tokenizer("tiktoken").vocabulary.ranks
    ranks = {bytes((byte,)): byte for byte in range(256)}
    extra = [
        b"  ",
        b"    ",
        b"\n\n",
        b"\r\n",
        b" \n",
        b"\n ",
        b".\n",
        b"!\n\n",
        b"a ",
        b"12",
        b"123",
        b"\t\t",
        b"/\n",
        b"\n/",
    ]
    for token in [*extra, *known]:
        if token not in ranks:
            ranks[token] = len(ranks)
    return Tokenizer(Vocabulary(ranks, pattern, {}), engine="tiktoken")


TOKENIZERS = {name: tokenizer(pattern) for name, pattern in {**ALL, "own": OWN}.items()}


def encode(tokenizer, pieces):
    text = LongText(tokenizer)
    parts = [*(text.add(piece) for piece in pieces), text.finish()]
    return np.concatenate([tokenizer.encode(part) for part in parts]), parts


SIGNS = ["a", "bc", "Z", "é", "語", "。", "1", "23", " ", "  ", "\n", "\r\n", "\t", "\x1c", "\x85", "\u3000", "\u180e"]
SIGNS += ["'", "'s", "'Ll", "/", ".", "!?", "\u0301", "🙂", "\ud83d", "\ude42", "٣", "_"]


@pytest.mark.parametrize("name", TOKENIZERS)
@given(data=st.data())
def test_tokens_are_those_of_the_whole(name, data):
    pieces = data.draw(st.lists(st.lists(st.sampled_from(SIGNS), max_size=12).map("".join), max_size=8))
    expected = TOKENIZERS[name].encode("".join(pieces))
    np.testing.assert_array_equal(encode(TOKENIZERS[name], pieces)[0], expected)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_every_cut_of_a_text(name):
    text = "It's 12 o'clock.\n\nNow:\t'll\r\n 3/4 ?\n/x  \n  y。\n語 1\x1c2"
    expected = TOKENIZERS[name].encode(text)
    for cut in range(len(text) + 1):
        np.testing.assert_array_equal(encode(TOKENIZERS[name], [text[:cut], text[cut:]])[0], expected)
    np.testing.assert_array_equal(encode(TOKENIZERS[name], list(text))[0], expected)


@given(
    st.lists(st.tuples(st.sampled_from(["a", " ", "\n", "!"]), st.integers(1, 2 * LONGEST_RUN + 9)), max_size=4),
    st.integers(1, 100_000),
    st.sampled_from(["nanochat", "gpt2"]),
)
@settings(max_examples=settings().max_examples // 5)
def test_endless_runs(runs, piece, name):
    """Cut at multiples of the limit from where a run begins, wherever pieces end."""
    text = "".join(character * count for character, count in runs)
    got, parts = encode(TOKENIZERS[name], [text[i : i + piece] for i in range(0, len(text), piece)])
    np.testing.assert_array_equal(got, TOKENIZERS[name].encode(text))
    assert max(map(len, parts)) <= piece + 4 * LONGEST_RUN


def test_known_patterns():
    assert all(map(has_known_cuts, ALL.values()))
    assert not has_known_cuts(OWN)
    assert not has_known_cuts(r"\p{L}+ \p{L}+")


@pytest.mark.parametrize("filling", ["word ", "語", *slow("x", " ", "line\n", "。\n", "- \r\n")])
def test_little_is_kept(filling):
    """However long a text is: what waits is no more than a piece and a run."""
    piece = (filling * 300_000)[:300_000]
    text = LongText(TOKENIZERS["nanochat"])
    tracemalloc.start()
    for _ in range(40):
        text.add(piece)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 12 * len(piece.encode()) + 2**20
    assert len(text.finish()) <= len(piece) + LONGEST_RUN


def test_cuts_are_where_the_page_says():
    text = LongText(TOKENIZERS["gpt4"])
    assert text.add("The end. The ne") == "The end. The"
    assert text.add("xt\n") == " next"
    assert text.add("- a\n") == "\n- a"
    assert text.finish() == "\n"
