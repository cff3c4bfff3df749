"""Models of SentencePiece: the tokens of its own library, and what folders say about them."""

import json
import pickle

import pytest
from hypothesis import given

from any_tokenizers import PLAIN, WITH_NAMES, sentencepiece_model
from tokenfeed.errors import FormatError
from tokenfeed.text.tokenizer.tokenizer import Tokenizer

sentencepiece = pytest.importorskip("sentencepiece")

SP = [("bpe", "identity"), ("unigram", "identity"), ("bpe", "nmt_nfkc"), ("unigram", "nmt_nfkc_cf")]


@pytest.fixture(scope="module", params=SP, ids="-".join)
def model(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "tokenizer.model"
    path.write_bytes(sentencepiece_model(*request.param))
    return request.param[1], Tokenizer.load(path), sentencepiece.SentencePieceProcessor(model_file=str(path))


@given(text=PLAIN | WITH_NAMES)
def test_sentencepiece(model, text):
    rule, ours, theirs = model
    ids = ours.encode(text)
    assert ids.tolist() == theirs.encode(text)
    assert not {1, 2} & set(ids.tolist())
    assert ours.decode(ids) == theirs.decode(ids.tolist())
    if rule == "identity" and "▁" not in text:
        assert ours.count_bytes(ids).sum() == len(text.encode())
        documents = ours.encode_batch([text, text], prepend="<s>")[0]
        assert ours.count_bytes(documents).sum() == 2 * len(text.encode())


def test_sentencepiece_models(model, tmp_path):
    _, ours, theirs = model
    assert (ours.bos_id, ours.eos_id, ours.vocab_size) == (1, 2, theirs.vocab_size())
    assert (ours.engine_name, ours.adds_space) == ("sentencepiece", True)
    assert ours.encode("a\ud800b").tolist() == theirs.encode("a\ufffdb")
    ours.save(tmp_path)
    again = Tokenizer.load(tmp_path)
    assert again.vocabulary == ours.vocabulary
    assert pickle.loads(pickle.dumps(ours)).encode("the end").tolist() == theirs.encode("the end")
    assert ours.decode(ours.encode_batch(["the end", "the"], prepend="<s>")[0]) == "<s>the end<s>the"


def test_a_folder_of_sentencepiece_with_a_configuration(tmp_path):
    (tmp_path / "tokenizer.model").write_bytes(sentencepiece_model(user_defined_symbols="<|user|>"))
    added = {"700": {"content": "<|pad|>", "special": True}}
    config = {"bos_token": None, "eos_token": "<|pad|>", "added_tokens_decoder": added}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = Tokenizer.load(tmp_path)
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.vocab_size) == (1, 700, 701)
    user = tokenizer.vocabulary.tokens.index(b"<|user|>")
    assert user in tokenizer.encode("a<|user|>b")  # a user-defined symbol is an ordinary token
    added[str(user)] = {"content": "<|user|>", "special": True}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(FormatError, match=r"tokenizer\.model: special token '<\|user\|>' is a user-defined symbol"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize("data", [b"", b"IQ== 0\nIg== 1\n", b"\x0a\xff\xff\xff", bytes(1000)])
def test_what_is_no_sentencepiece_model(data, tmp_path):
    (tmp_path / "tokenizer.model").write_bytes(data)
    with pytest.raises(FormatError, match=r"tokenizer\.model: .*SentencePiece model"):
        Tokenizer.load(tmp_path)
    with pytest.raises(FormatError, match="after words"):
        path = tmp_path / "suffix.model"
        path.write_bytes(sentencepiece_model("unigram", treat_whitespace_as_suffix=True))
        Tokenizer.load(path)
