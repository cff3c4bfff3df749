"""Engines: each gives exactly the tokens of tiktoken's `encode_ordinary`, whatever the text and however long."""

import itertools
import unicodedata
from functools import cache

import numpy as np
import pytest
import tiktoken
from hypothesis import given, settings
from hypothesis import strategies as st

from golden import golden_texts, golden_tokenizer, golden_tokens, golden_vocabulary
from tiers import examples
from tokenfeed.errors import ArgumentError, DependencyError
from tokenfeed.text.tokenizer import pieces
from tokenfeed.text.tokenizer.engines import choose_engine, make_engine
from tokenfeed.text.tokenizer.pieces import LONGEST_RUN, cut_runs, encode_texts
from tokenfeed.text.tokenizer.vocabulary import PATTERNS, Vocabulary

EXACT = ["tiktoken", "fastokens"]
KNOWN_TO_GIGATOKEN = ["gpt2", "gpt4", "gpt4o"]
PAIRS = [*itertools.product(EXACT, PATTERNS), *(("gigatoken", name) for name in KNOWN_TO_GIGATOKEN)]

LANGUAGES = [
    "The quick brown fox doesn't jump over 12,345 lazy dogs — 'twas WE'LL'VE it's.\r\n\r\n\tNext  line…",
    "Größe, Straße, naïve façade, Ærøskøbing, Łódź, İstanbul, dž ǅ ſt",
    "Съешь же ещё этих мягких французских булок, да выпей чаю. Ελληνικά: ξεσκεπάζω την ψυχοφθόρα.",
    "日本語の文章です。漢字、ひらがな、カタカナ。全角 スペース　も。中文句子,没有空格。한국어 문장입니다.",
    "नमस्ते दुनिया क्षत्रिय ١٢٣ العربية مع تشكيلٍ עברית ไทยไม่มีช่องว่าง မြန်မာ",
    "👩‍👩‍👧‍👦👍🏽🇩🇪❤️‍🔥 ½ ² Ⅷ ①②③ e\u0301e\u0301 \u200b\u200d\ufeff\u00a0\u2003\u3000\u2028x\u0085y\x1c\x00z",
    "def f(x):\n    return {'a': [1, 22, 333, 4444]}  # comment\n\n\n\tif x != 0x1F: pass\n",
    "<|bos|><|user_start|>text <|assistant_end|> <|endoftext|>",
    "",
    " ",
    "\n",
    "it'ſ I'M x'LL 'ſ 'S",
]

ADVERSARIAL = st.one_of(
    st.characters(),  # every code point that is not a surrogate, unassigned ones included
    st.characters(categories=["Cs"]),
    st.characters(categories=["Mn", "Mc", "Me", "Nd", "Nl", "No", "Zs", "Zl", "Zp", "Cc", "Cf", "Lt", "Lm"]),
    st.integers(0x1C80, 0x1C8A).map(chr),  # two of them assigned in Unicode 16
    st.integers(0x10D40, 0x10D8F).map(chr),  # Garay: letters and digits of Unicode 16
    st.integers(0x2EBF0, 0x2EE5D).map(chr),  # CJK extension I, Unicode 15.1
    st.integers(0x16D40, 0x16D79).map(chr),  # Kirat Rai, Unicode 16
    st.sampled_from(
        [
            "'ſ",
            "\u180e",
            "'S",
            "'ll",
            "'Re",
            " ",
            "\t",
            "\r\n",
            "\n",
            "\x00",
            "<|bos|>",
            "\u200d",
            "👍🏽",
            "a",
            "Z",
            "9",
        ]
    ),
    st.tuples(st.sampled_from([" ", "\n", "7", "\r", "a", ".", "漢", "'", "\u0301", "٣"]), st.integers(1, 300)).map(
        lambda pair: pair[0] * pair[1]
    ),
)
TEXTS = st.lists(st.lists(ADVERSARIAL, max_size=30).map("".join), max_size=6)
# Code points that every table of the last twenty years agrees on.
OLD = st.characters(exclude_categories=["Cs", "Cn"]).filter(lambda c: unicodedata.ucd_3_2_0.category(c) != "Cn")
OLD_TEXTS = st.lists(st.lists(OLD, max_size=60).map("".join), max_size=6)


@cache
def pair_vocabulary(pattern):
    """Every two bytes are a token, so that no two ways of splitting a text give the same tokens."""
    ranks = {bytes((byte,)): byte for byte in range(256)}
    ranks |= {bytes(pair): 256 + i for i, pair in enumerate(itertools.product(range(256), repeat=2))}
    return Vocabulary(ranks, PATTERNS[pattern], {"<|bos|>": len(ranks)})


@cache
def made(vocabulary_of, engine, pattern):
    return make_engine(vocabulary_of(pattern), engine)


@cache
def reference(vocabulary_of, pattern):
    vocabulary = vocabulary_of(pattern)
    return tiktoken.Encoding(
        "reference",
        pat_str=vocabulary.pattern,
        mergeable_ranks=vocabulary.ranks,
        special_tokens=vocabulary.special_tokens,
    )


def check_equal(engine, pattern, texts, *, threads=2, vocabulary_of=golden_vocabulary):
    ids, offsets = encode_texts(made(vocabulary_of, engine, pattern), texts, threads)
    expected = [reference(vocabulary_of, pattern).encode_ordinary(text) for text in texts]
    assert offsets.tolist() == [0, *np.cumsum([len(tokens) for tokens in expected], dtype=int).tolist()]
    assert ids.tolist() == [token for tokens in expected for token in tokens]


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize(("engine", "pattern"), PAIRS)
def test_many_languages(engine, pattern, threads):
    check_equal(engine, pattern, LANGUAGES * 3, threads=threads)
    check_equal(engine, pattern, [], threads=threads)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("engine", EXACT)
def test_what_nanochat_recorded(engine, threads):
    ids, offsets = golden_tokenizer(engine).encode_batch(golden_texts(), threads=threads)
    np.testing.assert_array_equal(ids, golden_tokens()[0])
    np.testing.assert_array_equal(offsets, golden_tokens()[1])


@pytest.mark.parametrize(("engine", "pattern"), list(itertools.product(EXACT, PATTERNS)))
@given(texts=TEXTS)
def test_adversarial_unicode(engine, pattern, texts):
    check_equal(engine, pattern, texts, vocabulary_of=pair_vocabulary)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_every_code_point_below_3000_in_company(pattern):
    """U+180E, which fastokens takes for white space, and `'ſ`, which it does not find, are among them."""
    texts = [before + chr(number) + after for number in range(0x3000) for before, after in ((" ", "!"), ("A'", "a"))]
    check_equal("fastokens", pattern, texts, vocabulary_of=pair_vocabulary)


@pytest.mark.parametrize("pattern", KNOWN_TO_GIGATOKEN)
@given(texts=OLD_TEXTS)
def test_gigatoken_on_code_points_assigned_long_ago(pattern, texts):
    check_equal("gigatoken", pattern, texts, vocabulary_of=pair_vocabulary)


@pytest.mark.parametrize(("engine", "pattern"), PAIRS)
def test_surrogates_are_replaced_and_pairs_joined(engine, pattern):
    check_equal(engine, pattern, ["plain", "a\ud800b", "\udfff", "\ud83d\ude00 \ude00\ud83d", "é"])


@pytest.mark.parametrize(("engine", "pattern"), PAIRS)
def test_ids_with_holes(engine, pattern):
    """Engines that want ranks without holes are given others, and their tokens are renamed."""
    dense = golden_vocabulary(pattern)
    holes = Vocabulary({token: 2 * rank + 5 for token, rank in dense.ranks.items()}, dense.pattern, {"<s>": 0}, "<s>")
    ids, offsets = encode_texts(make_engine(holes, engine), LANGUAGES, 2)
    expected, expected_offsets = encode_texts(make_engine(dense, "tiktoken"), LANGUAGES, 2)
    np.testing.assert_array_equal(ids, 2 * expected + 5)
    np.testing.assert_array_equal(offsets, expected_offsets)


RUN = 200_000
ENDLESS = {
    "spaces": " " * RUN,
    "spaces before a letter": " " * RUN + "a",
    "letters": "a" * RUN,
    "capitals": "A" * RUN + ".",
    "digits": "7" * RUN,
    "full stops": "." * RUN,
    "newlines": "\n" * RUN,
    "combining marks": "\u0301" * RUN,
    "ideographs": "日本語漢字中文" * (RUN // 7),
    "emoji": "😀👍🏽👩‍🚀❤️" * (RUN // 8),
    "runs of all kinds": "x y" + " " * RUN + "b" * RUN + "\n" + "c" * LONGEST_RUN + "\t" * LONGEST_RUN,
    "surrogates": "\ud83d\ude00" * (RUN // 2),
}


@pytest.mark.parametrize(
    ("engine", "pattern"),
    [(engine, "nanochat") for engine in ("tiktoken", "fastokens")]
    + [(engine, "gpt4o") for engine in ("tiktoken", "fastokens", "gigatoken")],
)
def test_endless_runs_give_the_tokens_of_their_pieces(engine, pattern):
    """In one piece they would take minutes to hours, or overflow the stack."""
    texts = ["before", *ENDLESS.values(), "after"]
    ids, offsets = golden_tokenizer(engine, pattern).encode_batch(texts)
    whole = [text.encode("utf-16", "surrogatepass").decode("utf-16") for text in texts]
    for i, text in enumerate(whole):
        pieces = [reference(golden_vocabulary, pattern).encode_ordinary(piece) for piece in cut_runs(text)]
        assert ids[offsets[i] : offsets[i + 1]].tolist() == list(itertools.chain(*pieces))


@given(
    runs=st.lists(
        st.tuples(
            st.sampled_from([" ", "\u3000", "a", "漢"]),
            st.sampled_from([1, 2, LONGEST_RUN // 2, LONGEST_RUN - 1, LONGEST_RUN, LONGEST_RUN + 1, 3 * LONGEST_RUN]),
        ),
        max_size=5,
    )
)
@settings(max_examples=examples(30))
def test_runs_are_cut_where_the_rule_says(runs):
    text = "".join(character * count for character, count in runs)
    cuts, position = [0], 0
    for _, run in itertools.groupby(runs, key=lambda run: run[0].isspace()):
        length = sum(count for _, count in run)
        cuts.extend(range(position + LONGEST_RUN, position + length, LONGEST_RUN))
        position += length
    expected = [text[start:stop] for start, stop in itertools.pairwise([*cuts, len(text)])]
    assert cut_runs(text) == expected


def test_long_runs_are_looked_for_in_few_places(monkeypatch):
    """A character of each kind in every half of the limit is enough to know that there is none."""
    places = []

    class Noting:
        def __init__(self, pattern):
            self._pattern = pattern

        def search(self, text, start, stop):
            found = self._pattern.search(text, start, stop)
            places.append((found.end() if found else stop) - start)
            return found

    for name in ("_SPACE", "_NOT_SPACE"):
        monkeypatch.setattr(pieces, name, Noting(getattr(pieces, name)))
    text = "word " * 1_000_000
    assert cut_runs(text) == [text]
    assert len(places) <= 4 * len(text) / LONGEST_RUN
    assert sum(places) <= 6 * len(places)  # characters looked at: up to a space, or up to a letter


def test_engines_that_cannot_be_meant(monkeypatch):
    with pytest.raises(ArgumentError, match="there is no engine 'bpe'; choose one of fastokens"):
        choose_engine(golden_vocabulary(), "bpe")
    with pytest.raises(ArgumentError, match="gigatoken knows the patterns gpt2, gpt4 and gpt4o"):
        make_engine(golden_vocabulary(), "gigatoken")
    for engine in EXACT:
        with pytest.raises(ArgumentError, match=r"cannot use this vocabulary with pattern '\('"):
            make_engine(Vocabulary(golden_vocabulary().ranks, "(", {}), engine)
    monkeypatch.setattr("tokenfeed.text.tokenizer.engines.find_spec", lambda name: None)
    assert choose_engine(golden_vocabulary()) == "tiktoken"
    with pytest.raises(DependencyError, match=r"pip install 'tokenfeed\[text\]'"):
        choose_engine(golden_vocabulary(), "fastokens")
