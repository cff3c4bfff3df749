"""Mistral's tekken files: ranks of tiktoken after the special tokens."""

import base64
import json

import pytest
import tiktoken
from hypothesis import given
from hypothesis import strategies as st

from golden import golden_texts, golden_vocabulary
from tokenfeed.errors import FormatError
from tokenfeed.text.tokenizer.tokenizer import Tokenizer

NUM_SPECIAL, SIZE = 30, 1030


def tekken(**changes):
    """A file of 1,000 tokens, of which there are more, and 30 special tokens, of which four have names."""
    ranks = golden_vocabulary().ranks
    vocab = [
        {"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": token.decode(errors="ignore")}
        for token, rank in ranks.items()
        if rank < 1200
    ]
    names = ["<unk>", "<s>", "</s>", "[INST]"]
    config = {
        "pattern": golden_vocabulary().pattern,
        "num_vocab_tokens": 1200,
        "default_vocab_size": SIZE,
        "default_num_special_tokens": NUM_SPECIAL,
        "version": "v13",
    }
    special = [{"rank": rank, "token_str": name, "is_control": True} for rank, name in enumerate(names)]
    fields = {
        "config": {**config, **changes.pop("config", {})},
        "vocab": vocab,
        "special_tokens": special,
        "version": 1,
    }
    return {**fields, **changes}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tekken")
    (folder / "tekken.json").write_text(json.dumps(tekken()))
    return folder


def reference():
    ranks = {token: rank for token, rank in golden_vocabulary().ranks.items() if rank < SIZE - NUM_SPECIAL}
    pattern = golden_vocabulary().pattern
    return tiktoken.Encoding("tekken", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})


@given(st.text() | st.sampled_from(golden_texts()[:50]) | st.sampled_from(["<s>", "[INST] <SPECIAL_20>"]))
def test_tekken(folder, text):
    """Ids are those of tiktoken plus the number of special tokens: what mistral-common does."""
    tokenizer = Tokenizer.load(folder)
    ids = tokenizer.encode(text)
    assert ids.tolist() == [NUM_SPECIAL + rank for rank in reference().encode_ordinary(text)]
    assert tokenizer.decode(ids) == text
    assert tokenizer.count_bytes(ids).sum() == len(text.encode())


def test_special_tokens_of_tekken(folder, tmp_path):
    tokenizer = Tokenizer.load(folder / "tekken.json")
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.vocab_size) == (1, 2, SIZE)
    assert (tokenizer.special_id("[INST]"), tokenizer.special_id("<SPECIAL_29>")) == (3, 29)
    tokenizer.save(tmp_path / "saved")
    assert Tokenizer.load(tmp_path / "saved").digest == tokenizer.digest
    (tmp_path / "tekken.json").write_text(json.dumps(tekken(special_tokens=None)))
    old = Tokenizer.load(tmp_path)
    assert (old.bos_id, old.special_id("[/INST]"), old.special_id("<SPECIAL_20>")) == (1, 4, 20)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"config": {"default_vocab_size": 2000}}, "config has 2000 tokens, 30 of them special; vocab has 1200"),
        ({"config": {"default_vocab_size": 1 << 60, "default_num_special_tokens": 1 << 60}}, "config has 1152"),
        ({"vocab": [{"rank": 7, "token_bytes": "QQ=="}] * 1200}, "tokens 7 and 7 are both"),
        ({"config": {"default_num_special_tokens": 3}}, "special_tokens has ranks"),
        ({"config": {"pattern": "("}}, "pattern"),
        ({"special_tokens": [{"rank": 1, "token_str": "<s>"}]}, r"special_tokens has ranks \[1\]"),
        ({"special_tokens": [{"rank": 0, "token_str": "x"}, {"rank": 1, "token_str": "x"}]}, "names a token twice"),
        ({"vocab": [{"rank": 0, "token_bytes": "!"}] * 1200}, "not a tokenizer"),
        ({"config": {"default_vocab_size": 40}}, "ranks lacks 246 single bytes"),
        ({"vocab": 5}, "not a tokenizer"),
    ],
)
def test_what_is_wrong_in_a_tekken_file(changes, message, tmp_path):
    (tmp_path / "tekken.json").write_text(json.dumps(tekken(**changes)))
    with pytest.raises(FormatError, match=message) as caught:
        Tokenizer.load(tmp_path)
    assert str(tmp_path) in str(caught.value)
