"""Vocabularies: what is checked, and what is read from files of ours and of others."""

import json
from dataclasses import replace

import numpy as np
import pytest
import tiktoken
import tokenizers as library
from hypothesis import event, given
from hypothesis import strategies as st

from golden import GOLDEN, RANKS, golden_texts, golden_vocabulary
from tokenfeed.errors import ArgumentError, FormatError, MissingError, NotFoundError
from tokenfeed.text.tokenizer.byte_pairs import BYTE_CHARACTERS, NotBytePairsError, read_byte_pairs
from tokenfeed.text.tokenizer.general import GeneralVocabulary
from tokenfeed.text.tokenizer.tokenizer import Tokenizer
from tokenfeed.text.tokenizer.vocabulary import PATTERNS, Vocabulary, find_pattern
from tokenfeed.text.tokenizer.vocabulary_files import read_ranks, read_vocabulary, write_vocabulary

BYTES = {bytes((byte,)): byte for byte in range(256)}


def test_what_nanochat_records():
    vocabulary = golden_vocabulary()
    assert vocabulary.size == 4096
    assert vocabulary.pattern == (GOLDEN / "tokenizer" / "pattern.txt").read_text()
    recorded = np.load(GOLDEN / "tokenizer" / "token_bytes.npy")
    np.testing.assert_array_equal(vocabulary.token_bytes, recorded)
    assert vocabulary.token_bytes.dtype == np.int32


def test_unused_ids_stand_for_no_bytes():
    vocabulary = Vocabulary({**BYTES, b"ab": 260}, ".", {"<s>": 262})
    assert vocabulary.size == 263
    assert vocabulary.token_bytes[255:].tolist() == [1, 0, 0, 0, 0, 2, 0, 0]
    assert vocabulary.tokens[259:] == [None, b"ab", None, b"<s>"]


@pytest.mark.parametrize(
    ("ranks", "special_tokens", "bos", "message"),
    [
        ({b"a": 0}, {}, None, "lacks 255 single bytes, the first of them 0"),
        ({**BYTES, b"ab": 7}, {}, None, r"b'\\x07' and b'ab' both have id 7"),
        ({**BYTES, b"ab": 256}, {"<s>": 256}, None, "b'ab' and '<s>' both have id 256"),
        ({**BYTES, b"ab": -1}, {}, None, "id -1"),
        ({**BYTES, b"ab": 256.0}, {}, None, "id 256.0"),
        ({**BYTES, b"ab": 1 << 30}, {}, None, "leave most numbers unused"),
        ({**BYTES, b"": 256}, {}, None, "id 256 is empty"),
        (BYTES, {"": 256}, None, "id 256 is empty"),
        (BYTES, {"<s>": 256}, "<bos>", "bos '<bos>' is not a special token"),
    ],
)
def test_what_is_no_vocabulary(ranks, special_tokens, bos, message):
    with pytest.raises(ArgumentError, match=message):
        Vocabulary(ranks, ".", special_tokens, bos)


def test_digest_follows_ranks_pattern_and_special_tokens():
    one = Vocabulary({**BYTES, b"ab": 256, b"cd": 257}, ".", {"<s>": 258, "<t>": 259}, "<s>")
    reordered = Vocabulary(dict(reversed(one.ranks.items())), ".", dict(reversed(one.special_tokens.items())))
    assert one.digest == reordered.digest
    others = [
        replace(one, ranks={**BYTES, b"ab": 257, b"cd": 256}),
        replace(one, pattern=".."),
        replace(one, special_tokens={"<s>": 259, "<t>": 258}),
        replace(one, special_tokens={"<s>": 258, "<u>": 259}),
    ]
    assert len({one.digest, *(other.digest for other in others)}) == 5
    assert one.digest == "ebc217b6ebf026bb"  # stays what it is in checkpoints


def test_patterns_by_name():
    assert find_pattern("gpt4o") == PATTERNS["gpt4o"]
    assert find_pattern(r"\p{L}+|.") == r"\p{L}+|."
    for name in ("", "gpt5", "llama-3", "o200k_base"):
        with pytest.raises(ArgumentError, match="nanochat, gpt2, gpt4, gpt4o"):
            find_pattern(name)


@pytest.mark.parametrize("name", ["tokenizer", "some/folder", "one.json"])
def test_our_own_form_round_trips(name, tmp_path):
    vocabulary = Vocabulary({**BYTES, b"ab": 256, b"\xff\x00": 300}, "'\\p{L}\"é", {"<|π|>": 301, "<s>": 257}, "<|π|>")
    file = write_vocabulary(vocabulary, tmp_path / name)
    assert read_vocabulary(tmp_path / name) == vocabulary == read_vocabulary(file)
    assert file.name == ("one.json" if name == "one.json" else "tokenizer.json")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "version is 2"),
        ({"pattern": None}, "expected pattern"),
        ({"ranks": ["AA==", 5]}, "token 1 is 5"),
        ({"ranks": ["AA==", "!"]}, "token 1 is '!'"),
        ({"ranks": ["AA==", "AA=="]}, "tokens 0 and 1 are both"),
        ({"ranks": ["AA=="]}, "the first of them 1"),
        ({"bos": "<x>"}, "bos '<x>'"),
        ({"bos": []}, "tokenizer.json"),
        ({"special_tokens": {"<s>": "256"}}, "id '256'"),
        ({"format": "other"}, "not a tokenizer of tokenfeed"),
    ],
)
def test_what_is_wrong_in_our_own_form(change, message, tmp_path):
    file = write_vocabulary(Vocabulary(BYTES, ".", {"<s>": 256}), tmp_path)
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(FormatError, match=message) as caught:
        read_vocabulary(tmp_path)
    assert str(file) in str(caught.value)


def test_what_is_no_file_of_a_vocabulary(tmp_path):
    with pytest.raises(NotFoundError, match="does not exist"):
        read_vocabulary(tmp_path)
    with pytest.raises(FormatError, match="from_ranks"):
        read_vocabulary(RANKS)
    (tmp_path / "tokenizer.json").write_text("[]")
    with pytest.raises(FormatError, match="holds a JSON list"):
        read_vocabulary(tmp_path)
    with pytest.raises(NotFoundError, match="no rank file"):
        read_ranks(tmp_path / "missing")


@pytest.mark.parametrize("line", ["YWI=", "YWI= x", "YWI= 5 6", "Y*I= 5", "YWI 5"])
def test_a_bad_line_of_ranks_is_named(line, tmp_path):
    path = tmp_path / "ranks.tiktoken"
    path.write_text(f"YQ== 0\n\n{line}\n")
    with pytest.raises(FormatError, match=r"ranks.tiktoken, line 3"):
        read_ranks(path)
    path.write_text("YQ== 0\nYQ== 1\n")
    with pytest.raises(FormatError, match=r"line 2: token b'a' already has rank 0"):
        read_ranks(path)


def hugging_face(**changes):
    """A `tokenizer.json` of the bytes, " a", "ab" and " ab"."""
    characters = BYTE_CHARACTERS

    def written(token):
        return "".join(characters[byte] for byte in token)

    vocab = {written(bytes((byte,))): 1 + byte for byte in range(256)}
    vocab |= {"<|end|>": 0, written(b" a"): 257, written(b"ab"): 258, written(b" ab"): 259}
    model = {"type": "BPE", "vocab": vocab, "merges": [f"{characters[32]} a", ["a", "b"], [written(b" a"), "b"]]}
    fields = {
        "added_tokens": [{"id": 0, "content": "<|end|>", "special": True}],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "model": {**model, **changes.pop("model", {})},
    }
    return {**fields, **changes}


def test_hugging_face(tmp_path):
    (tmp_path / "tokenizer.json").write_text(json.dumps(hugging_face()))
    vocabulary = read_vocabulary(tmp_path)
    assert vocabulary.special_tokens == {"<|end|>": 0}
    assert vocabulary.ranks == {
        **{bytes((byte,)): 1 + byte for byte in range(256)},
        b" a": 257,
        b"ab": 258,
        b" ab": 259,
    }
    assert vocabulary.pattern.endswith(r"|\s+(?!\S)|\s+")
    split = {"type": "Split", "pattern": {"Regex": r"\p{L}+|.|\n"}, "behavior": "Isolated", "invert": False}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
    sequence = {"type": "Sequence", "pretokenizers": [split, byte_level]}
    (tmp_path / "tokenizer.json").write_text(json.dumps(hugging_face(pre_tokenizer=sequence)))
    assert read_vocabulary(tmp_path).pattern == r"\p{L}+|.|\n"


@pytest.mark.parametrize(
    ("config", "bos", "eos"),
    [
        ({"bos_token": "<s>", "eos_token": {"content": "</s>", "special": True}}, "<s>", "</s>"),
        ({"bos_token": None, "eos_token": "</s>"}, None, "</s>"),
        ({"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": False, "add_eos_token": True}, None, "</s>"),
        ({}, None, None),
    ],
)
def test_the_configuration_beside_a_hugging_face_tokenizer_names_bos_and_eos(config, bos, eos, tmp_path):
    added = [{"content": "<|end|>", "id": 0}, {"content": "<s>", "id": 300}, {"content": "</s>", "id": 301}]
    (tmp_path / "tokenizer.json").write_text(json.dumps(hugging_face(added_tokens=added)))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    for path in (tmp_path, tmp_path / "tokenizer.json"):
        assert (read_vocabulary(path).bos, read_vocabulary(path).eos) == (bos, eos)
    tokenizer = Tokenizer.load(tmp_path, bos="</s>")
    tokenizer.save(tmp_path / "ours")
    assert Tokenizer.load(tmp_path / "ours").vocabulary == tokenizer.vocabulary
    assert tokenizer.separators() == (301, None)
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(FormatError, match=r"tokenizer_config\.json is not JSON"):
        read_vocabulary(tmp_path)


def test_a_configuration_that_names_unknown_tokens_is_refused(tmp_path):
    added = [{"content": "<|end|>", "id": 0}, {"content": "<s>", "id": 300}]
    (tmp_path / "tokenizer.json").write_text(json.dumps(hugging_face(added_tokens=added)))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<b>", "eos_token": {"content": "<e>"}}))
    words = r"config\.json names bos_token '<b>' and eos_token '<e>', not among .*: '<\|end\|>', '<s>'\. Correct"
    with pytest.raises(FormatError, match=words):
        Tokenizer.load(tmp_path)
    with pytest.raises(FormatError, match="names eos_token '<e>', not among"):
        Tokenizer.load(tmp_path, bos="<s>")
    with pytest.raises(ArgumentError, match="bos '<typo>' is not a special token"):
        Tokenizer.load(tmp_path, bos="<typo>", eos="<s>")
    assert Tokenizer.load(tmp_path, bos="<s>", eos="<s>").bos_id == 300


def test_a_tokenizer_without_special_tokens_says_what_to_do():
    plain = Tokenizer(Vocabulary(BYTES, PATTERNS["gpt2"], {}))
    with pytest.raises(MissingError, match=r"has no special tokens, .*Tokenizer\.train\(…, special_tokens="):
        assert plain.bos_id
    with pytest.raises(ArgumentError, match=r"run into each other.*special_tokens=.*load another; or .*separator=None"):
        plain.separators()
    with pytest.raises(MissingError, match="no special token '<s>'; the vocabulary has none"):
        plain.special_id("<s>")


def test_a_folder_without_a_tokenizer_json_says_how_to_make_one(tmp_path):
    (tmp_path / "vocab.json").write_bytes(b"")
    with pytest.raises(NotFoundError, match=r"transformers makes one of vocab.json: AutoTokenizer, save_pretrained"):
        Tokenizer.load(tmp_path)


def test_an_encoding_of_tiktoken():
    vocabulary = golden_vocabulary()
    ranks, special = dict(vocabulary.ranks), {"<|endoftext|>": 5000, "<s>": 5001}
    encoding = tiktoken.Encoding("mine", pat_str=vocabulary.pattern, mergeable_ranks=ranks, special_tokens=special)
    tokenizer = Tokenizer.from_tiktoken(encoding)
    assert (tokenizer.vocabulary.bos, tokenizer.vocabulary.eos) == (None, "<|endoftext|>")
    text = golden_texts()[0]
    assert tokenizer.encode(text).tolist() == encoding.encode_ordinary(text)
    assert tokenizer.separators() == (None, 5000)
    assert Tokenizer.from_tiktoken(encoding, bos="<s>").separators() == (5001, None)


BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}


def split_by(regex):
    split = {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [split, BYTE_LEVEL]}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {"byte_fallback": True}}, "byte_fallback"),
        ({"model": {"merges": ["Ġ a", "Ġa b", "a b"]}}, "makes token 258, after one that made token 259"),
        ({"model": {"merges": ["Ġ a", "a b"]}}, "no merge makes token 259"),
        ({"model": {"merges": ["Ġ a", "a b", "Ġ ab"]}}, "is not what merging by rank leaves of token 259"),
        ({"model": {"merges": ["Ġ a", "a b"], "ignore_merges": True}}, "token 259, b' ab', but merging by rank would"),
        ({"normalizer": {"type": "NFC"}}, "normalizer 'NFC'"),
        ({"pre_tokenizer": None}, "splits text by"),
        ({"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True}}, "a space before every text"),
        ({"pre_tokenizer": BYTE_LEVEL}, "splits text by"),
        ({"pre_tokenizer": {"type": "Metaspace"}}, "splits text by"),
        ({"pre_tokenizer": split_by(r"\p{L}+|.")}, "may leave out characters"),
        ({"pre_tokenizer": split_by(r"\S+|\s+(?=\S)")}, "may leave out characters"),
        ({"added_tokens": [{"id": 0, "content": "   ", "special": False}]}, "'   ' is not special"),
        ({"added_tokens": [{"id": 0, "content": "<|end|>", "special": False}]}, r"'<\|end\|>' is not special"),
        ({"added_tokens": []}, "no merge makes token 0"),
    ],
)
def test_hugging_face_tokenizers_that_ranks_do_not_describe(changes, message, tmp_path):
    fields = hugging_face(**changes)
    special = {token["content"]: token["id"] for token in fields["added_tokens"] if token["special"]}
    with pytest.raises(NotBytePairsError, match=message):
        read_byte_pairs(fields, special, None, None)
    (tmp_path / "tokenizer.json").write_text(json.dumps(fields))
    assert isinstance(read_vocabulary(tmp_path), GeneralVocabulary)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {"type": "Unigram"}}, "library tokenizers cannot use"),
        ({"model": {"merges": ["Ġ a", "a c"]}}, "library tokenizers cannot use"),
        ({"model": {"merges": [["a"]]}}, "not a tokenizer"),
        ({"added_tokens": 5}, "not a tokenizer"),
    ],
)
def test_what_is_no_tokenizer_of_hugging_face(changes, message, tmp_path):
    (tmp_path / "tokenizer.json").write_text(json.dumps(hugging_face(**changes)))
    with pytest.raises(FormatError, match=message) as caught:
        Tokenizer.load(tmp_path)
    assert str(tmp_path) in str(caught.value)


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=30), st.lists(st.text("abc ", max_size=12)))
def test_merges_are_accepted_only_if_ranks_make_the_same_tokens(pairs, texts):
    """Any list of merges over three letters: what is accepted has the tokens of the library."""
    written = ["a", "b", "c"]
    merges: list[list[str]] = []
    for left, right in pairs:
        parts = [written[left % len(written)], written[right % len(written)]]
        if "".join(parts) not in written and len("".join(parts)) < 7:
            merges.append(parts)
            written.append("".join(parts))
    vocab = {character: number for number, character in enumerate(sorted(BYTE_CHARACTERS))}
    vocab |= {token: 256 + number for number, token in enumerate(written[3:])}
    model = {"type": "BPE", "vocab": vocab, "merges": merges}
    fields = hugging_face() | {"model": model, "added_tokens": []}
    try:
        vocabulary = read_byte_pairs(fields, {}, None, None)
    except NotBytePairsError as error:
        event(str(error)[-40:])
        return
    event("accepted")
    ours = Tokenizer(vocabulary, engine="tiktoken")
    theirs = library.Tokenizer.from_str(json.dumps({"version": "1.0", **fields}))
    for text in texts:
        assert ours.encode(text).tolist() == theirs.encode(text).ids


def test_hugging_face_made_by_its_own_library(tmp_path):
    """Trained and saved there, read here: the same tokens for every document."""
    theirs = library.Tokenizer(library.models.BPE())
    regex = library.pre_tokenizers.Split(library.Regex(PATTERNS["gpt4o"]), "isolated")
    byte_level = library.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    theirs.pre_tokenizer = library.pre_tokenizers.Sequence([regex, byte_level])
    alphabet = library.pre_tokenizers.ByteLevel.alphabet()
    trainer = library.trainers.BpeTrainer(
        vocab_size=2000, special_tokens=["<|end|>"], initial_alphabet=alphabet, show_progress=False
    )
    texts = golden_texts()[:400]
    theirs.train_from_iterator(texts, trainer)
    theirs.save(str(tmp_path / "tokenizer.json"))
    ours = Tokenizer.load(tmp_path, bos="<|end|>")
    assert ours.bos_id == 0
    ids, offsets = ours.encode_batch(texts)
    for i, encoding in enumerate(theirs.encode_batch(texts)):
        assert ids[offsets[i] : offsets[i + 1]].tolist() == encoding.ids
