"""Tokenizers of every kind: the tokens of their own libraries, special tokens as ordinary text, bytes counted right."""

import itertools
import json
import pickle
import random

import numpy as np
import pytest
import tokenizers as library
from hypothesis import given

from any_tokenizers import FAST, KEEP_TEXT, KINDS, PLAIN, SPECIAL, WITH_NAMES, make, texts, write
from tiers import pick
from tokenfeed.errors import ArgumentError, FormatError, MissingError
from tokenfeed.text.tokenizer.tokenizer import Tokenizer
from tokenfeed.text.tokenizer.vocabulary import PATTERNS, Vocabulary


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizers")
    return {kind: Tokenizer.load(write(kind, folder / kind)) for kind in KINDS}


def their_ids(kind, text):
    theirs = make(kind)
    theirs.no_truncation()
    theirs.no_padding()
    return theirs.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_are_those_of_the_library(kind, opened):
    ids, offsets = opened[kind].encode_batch(texts(), threads=2)
    for i, text in enumerate(texts()):
        assert ids[offsets[i] : offsets[i + 1]].tolist() == their_ids(kind, text)
        assert opened[kind].decode(ids[offsets[i] : offsets[i + 1]]) == make(kind).decode(
            their_ids(kind, text), skip_special_tokens=False
        )
    assert opened[kind].engine_name == FAST.get(kind, "tokenizers")


@pytest.mark.parametrize("kind", KINDS)
@given(text=PLAIN)
def test_any_text(kind, opened, text):
    if any(name in text for name in SPECIAL):
        return
    ids = opened[kind].encode(text)
    assert ids.tolist() == their_ids(kind, text)
    if opened[kind].pattern is None:
        assert opened[kind].decode(ids) == make(kind).decode(ids.tolist(), skip_special_tokens=False)


@pytest.mark.parametrize("kind", KINDS)
@given(text=WITH_NAMES)
def test_special_tokens_in_a_text_are_ordinary_text(kind, opened, text):
    tokenizer = opened[kind]
    ids = set(tokenizer.encode(text).tolist())
    unknown = set() if tokenizer.pattern else {tokenizer.vocabulary.unknown}
    assert not ids & (set(tokenizer.vocabulary.special_tokens.values()) - unknown)
    if kind in KEEP_TEXT and not text.startswith(" "):
        decoded = tokenizer.decode(tokenizer.encode(text))
        assert decoded.removeprefix(" ") == text.removeprefix(" ") or "<0x" in text or "▁" in text


def test_the_text_of_a_special_token_is_no_special_token_although_the_flag_of_the_library_makes_it_one(opened):
    """Why special tokens are renamed: `encode_special_tokens` keeps the library from looking for them in a text, but
    not a model that has them among its words, such as Unigram, from making them."""
    for kind in ("t5", "plain_unigram", "llama", "words"):
        theirs = make(kind)
        theirs.encode_special_tokens = True
        try:
            assert 1 in theirs.encode("<s> <s>", add_special_tokens=False).ids
        finally:
            theirs.encode_special_tokens = False
        ids = opened[kind].encode("<s> <s>").tolist()
        assert 1 not in ids
        assert kind not in KEEP_TEXT or opened[kind].decode(ids).strip() == "<s> <s>"


@pytest.mark.parametrize("kind", ["digits", "neox", "roberta", "gpt2", "qwen", "deepseek"])
@given(text=WITH_NAMES)
def test_ordinary_text_is_what_the_flag_of_the_library_says(kind, opened, text):
    """Where the model cannot make special tokens, the library has a way to do the same."""
    theirs = make(kind)
    theirs.encode_special_tokens = True
    try:
        assert opened[kind].encode(text).tolist() == their_ids(kind, text)
    finally:
        theirs.encode_special_tokens = False


@pytest.mark.parametrize("kind", sorted(KEEP_TEXT))
@given(text=PLAIN)
def test_bytes_are_those_of_the_text(kind, opened, text):
    tokenizer = opened[kind]
    if (text.startswith(" ") and tokenizer.adds_space) or "▁" in text or "<0x" in text:
        return  # a space more or less, which nothing can tell
    documents = tokenizer.encode_batch([text, "x", text], prepend="<s>", append="</s>")[0]
    assert tokenizer.count_bytes(documents).sum() == 2 * len(text.encode()) + 1
    ids = tokenizer.encode(text)
    assert tokenizer.count_bytes(ids).sum() == len(text.encode())
    assert tokenizer.token_bytes[ids].sum() - len(text.encode()) in (0, 1 if tokenizer.adds_space else 0)


def test_bytes_of_tokenizers_that_change_a_text(opened):
    """The divisor of bits per byte: the text as the tokenizer sees it."""
    assert opened["t5"].count_bytes(opened["t5"].encode("the  ﬁ")).sum() == len(b"the fi")
    assert opened["bert"].count_bytes(opened["bert"].encode("The  Same")).sum() == len(b"thesame")
    assert opened["neox"].count_bytes(opened["neox"].encode("e\u0301    x")).sum() == len("é    x".encode())
    unknown = opened["t5"].encode("the 彁 the")
    assert 0 in unknown
    assert opened["t5"].count_bytes(unknown).sum() == len(b"the  the")  # what is unknown counts for nothing


@pytest.mark.parametrize("kind", KINDS)
def test_roles_sizes_and_separators(kind, opened):
    tokenizer = opened[kind]
    assert (tokenizer.bos_id, tokenizer.eos_id) == (1, 2)
    assert tokenizer.separators() == (1, None)
    assert tokenizer.vocab_size == make(kind).get_vocab_size()
    ids = tokenizer.encode("the", prepend="<s>", append="</s>")
    assert ids.tolist() == [1, *their_ids(kind, "the"), 2]
    assert tokenizer.decode(ids).startswith("<s>")
    assert tokenizer.token_bytes[[1, 2, 3]].tolist() == [0, 0, 0]


@pytest.mark.parametrize("kind", KINDS)
def test_saved_pickled_and_loaded(kind, opened, tmp_path):
    tokenizer = opened[kind]
    tokenizer.save(tmp_path / "saved")
    again = Tokenizer.load(tmp_path / "saved")
    copy = pickle.loads(pickle.dumps(tokenizer))
    for other in (again, copy):
        assert other.vocabulary == tokenizer.vocabulary
        assert other.digest == tokenizer.digest
        np.testing.assert_array_equal(other.encode("the <s> same\n\n€"), tokenizer.encode("the <s> same\n\n€"))
    tokenizer.save(tmp_path / "saved")  # the same again
    assert len({one.digest for one in opened.values()}) == len(opened)
    another = opened["bert" if kind != "bert" else "t5"]
    with pytest.raises(ArgumentError, match=r"is not this tokenizer.*overwrite=True"):
        another.save(tmp_path / "saved")
    assert Tokenizer.load(tmp_path / "saved").digest == tokenizer.digest
    another.save(tmp_path / "saved", overwrite=True)
    assert Tokenizer.load(tmp_path / "saved").digest == another.digest


def test_runs_of_any_length_are_encoded_whole(opened):
    text = "a" * 70_000 + " " * 70_000 + "\ud800b"
    for kind in ("llama", "plain_unigram", "digits", "bert"):
        assert opened[kind].encode(text).tolist() == their_ids(kind, text.replace("\ud800", "\ufffd"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda fields: fields["model"].update(dropout=0.1), "merges are random"),
        (lambda fields: fields["model"].update(unk_token="nobody"), "unk_token 'nobody'"),
        (lambda fields: fields.update(decoder={"type": "CTC"}), "decoder 'CTC'"),
        (lambda fields: fields.update(normalizer={"type": "Nonsense"}), "library tokenizers cannot use"),
        (lambda fields: fields["added_tokens"][1].update(id=5), "has id 5; the library tokenizers gives it 1"),
        (lambda fields: fields["model"]["vocab"].update(far=1 << 40), "largest id is 1099511627776"),
        (lambda fields: fields["model"].update(vocab=None), "not a tokenizer"),
        (lambda fields: fields.update(model=None), "its model is None"),
        (lambda fields: fields["added_tokens"].append({"id": 990, "content": "  ", "special": True}), "white space"),
    ],
)
def test_what_cannot_be_used_is_named_with_its_file(change, message, tmp_path):
    fields = json.loads(make("llama").to_str())
    change(fields)
    (tmp_path / "tokenizer.json").write_text(json.dumps(fields))
    with pytest.raises(FormatError, match=message) as caught:
        Tokenizer.load(tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_engines_of_others_are_refused(opened, tmp_path):
    with pytest.raises(ArgumentError, match="engine is 'tiktoken', but this tokenizer is no plain byte-level BPE"):
        Tokenizer(opened["t5"].vocabulary, engine="tiktoken")
    assert Tokenizer(opened["t5"].vocabulary, engine="tokenizers").engine_name == "tokenizers"
    with pytest.raises(MissingError, match=r"which token ends a document.*eos="):
        assert Tokenizer.load(write("bert", tmp_path, eos_token=None)).eos_id


def test_roles_may_be_words_or_come_with_the_configuration(tmp_path):
    fields = json.loads(make("bert").to_str())
    fields["added_tokens"] = fields["added_tokens"][:1]
    (tmp_path / "tokenizer.json").write_text(json.dumps(fields))
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"bos_token": "<s>"}))
    added = {"2": {"content": "</s>", "special": True}, "600": {"content": "<|x|>", "special": True}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>", "added_tokens_decoder": added}))
    tokenizer = Tokenizer.from_pretrained(tmp_path)
    assert (tokenizer.bos_id, tokenizer.eos_id) == (1, 2)
    assert tokenizer.special_id("<|x|>") == 600 == tokenizer.vocab_size - 1


@pytest.mark.parametrize("kind", ["neox", "qwen"])
def test_texts_that_need_no_library_give_the_same_without_it(kind, opened):
    """Both ways in one call: added tokens, text that NFC changes, and code points newer than Python's tables."""
    mostly = opened[kind]
    alone = Tokenizer(mostly.vocabulary, engine="tokenizers")
    assert alone.engine_name == "tokenizers"
    mixed = ["the same", "a<|tool|>b", "e\u0301", "é", "    x", "\U000105c9\u0301", "\u0378", "", *texts()]
    for threads in (1, 2):
        ids, offsets = mostly.encode_batch(mixed, threads=threads)
        np.testing.assert_array_equal(ids, alone.encode_batch(mixed, threads=threads)[0])
        np.testing.assert_array_equal(offsets, alone.encode_batch(mixed, threads=threads)[1])
    assert pickle.loads(pickle.dumps(mostly)).engine_name == "tokenfeed+tokenizers"
    assert pickle.loads(pickle.dumps(alone)).engine_name == "tokenizers"
    with pytest.raises(ArgumentError, match=r"engine is 'tokenfeed\+tokenizers'"):
        Tokenizer(opened["t5"].vocabulary, engine="tokenfeed+tokenizers")


ODD = [*"'sSſtTlLmdKß1٣é日、ァ!/AǄǅʰª_½Ⅷ ", *"\n\r\t\x85\xa0\u0300\u180e\u200b\u2028", "ﬅ", "ll", "re", "VE"]


@pytest.mark.parametrize("name", ["gpt2", "gpt4", "gpt4o", "llama3", "qwen2", "tekken", "nanochat"])
def test_our_engine_cuts_words_where_the_library_does(name):
    """With a token for each two bytes, every cut shows."""
    pairs = itertools.product(sorted(set("".join(ODD).encode())), repeat=2)
    ranks = {bytes(token): rank for rank, token in enumerate([*((byte,) for byte in range(256)), *pairs])}
    tokenizer = Tokenizer(Vocabulary(ranks, PATTERNS[name], {}))
    split = library.pre_tokenizers.Split(library.Regex(PATTERNS[name]), "isolated")
    chance = random.Random(name)
    for _ in range(pick(300, 30_000)):
        text = "".join(chance.choices(ODD, k=chance.randrange(1, 10)))
        words = [word for word, _ in split.pre_tokenize_str(text)]
        assert tokenizer.encode(text).tolist() == tokenizer.encode_batch(words, threads=1)[0].tolist(), text
