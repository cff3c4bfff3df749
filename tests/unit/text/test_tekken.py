"""`examples/tekken`: a tokenizer of Mistral's tekken file, whose ids are those of tiktoken after the special tokens."""

import base64
import json
import subprocess
import sys
from pathlib import Path

import pytest
import tiktoken
from hypothesis import given
from hypothesis import strategies as st

from golden import golden_texts, golden_vocabulary
from tokenfeed.errors import FormatError
from tokenfeed.text.tokenizer.tokenizer import Tokenizer

EXAMPLE = Path(__file__).parents[3] / "examples" / "tekken/convert.py"
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
    return {"config": config, "vocab": vocab, "special_tokens": special, "version": 1, **changes}


def convert(folder, **changes):
    (folder / "tekken.json").write_text(json.dumps(tekken(**changes)))
    subprocess.run([sys.executable, EXAMPLE, folder / "tekken.json", folder / "tokenizer.json"], check=True)
    return Tokenizer.load(folder)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return convert(tmp_path_factory.mktemp("tekken"))


def reference():
    ranks = {token: rank for token, rank in golden_vocabulary().ranks.items() if rank < SIZE - NUM_SPECIAL}
    pattern = golden_vocabulary().pattern
    return tiktoken.Encoding("tekken", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})


@given(st.text() | st.sampled_from(golden_texts()[:50]) | st.sampled_from(["<s>", "[INST] <SPECIAL_20>"]))
def test_tekken(tokenizer, text):
    """Ids are those of tiktoken plus the number of special tokens: what mistral-common does."""
    ids = tokenizer.encode(text)
    assert ids.tolist() == [NUM_SPECIAL + rank for rank in reference().encode_ordinary(text)]
    assert tokenizer.decode(ids) == text
    assert tokenizer.count_bytes(ids).sum() == len(text.encode())


def test_special_tokens_of_tekken(tokenizer, tmp_path):
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.vocab_size) == (1, 2, SIZE)
    assert (tokenizer.special_id("[INST]"), tokenizer.special_id("<SPECIAL_29>")) == (3, 29)
    old = convert(tmp_path, special_tokens=None)
    assert (old.bos_id, old.eos_id, old.special_id("<SPECIAL_20>")) == (1, 2, 20)


def test_a_tekken_file_is_named_with_what_to_do(tmp_path):
    (tmp_path / "tekken.json").write_text(json.dumps(tekken()))
    for path in (tmp_path, tmp_path / "tekken.json"):
        with pytest.raises(FormatError, match=r"tekken\.json is a tekken file: .* examples/tekken makes a tokenizer"):
            Tokenizer.load(path)
