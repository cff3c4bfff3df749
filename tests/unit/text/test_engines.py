"""Engines: each gives exactly the tokens of tiktoken's `encode_ordinary`, whatever the text and however long."""

import itertools
import random
import subprocess
import sys
from functools import cache

import numpy as np
import pytest
import tiktoken
from hypothesis import given, settings
from hypothesis import strategies as st

from golden import golden_texts, golden_tokenizer, golden_tokens, golden_vocabulary
from tiers import examples, pick, slow
from tokenfeed.errors import ArgumentError, DependencyError
from tokenfeed.kernels.bpe import make_cache
from tokenfeed.text.tokenizer import engines, pieces
from tokenfeed.text.tokenizer.automata import compile_pattern
from tokenfeed.text.tokenizer.engines import ENGINES, choose_engine, make_engine
from tokenfeed.text.tokenizer.pieces import cut_runs, encode_texts, join_surrogates
from tokenfeed.text.tokenizer.vocabulary import PATTERNS, Vocabulary

LONGEST_RUN = 65_536
PAIRS = list(itertools.product(ENGINES, PATTERNS))

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
    expected = [reference(vocabulary_of, pattern).encode_ordinary(text) for text in texts]
    as_utf8 = [join_surrogates(text).encode() if number % 3 else text for number, text in enumerate(texts)]
    for given_texts in (texts, as_utf8):
        ids, offsets = encode_texts(made(vocabulary_of, engine, pattern), given_texts, threads)
        assert offsets.tolist() == [0, *np.cumsum([len(tokens) for tokens in expected], dtype=int).tolist()]
        assert ids.tolist() == [token for tokens in expected for token in tokens]


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize(("engine", "pattern"), PAIRS)
def test_many_languages(engine, pattern, threads):
    check_equal(engine, pattern, LANGUAGES * 3, threads=threads)
    check_equal(engine, pattern, [], threads=threads)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("engine", ENGINES)
def test_what_nanochat_recorded(engine, threads):
    ids, offsets = golden_tokenizer(engine).encode_batch(golden_texts(), threads=threads)
    np.testing.assert_array_equal(ids, golden_tokens()[0])
    np.testing.assert_array_equal(offsets, golden_tokens()[1])


@pytest.mark.parametrize("pattern", PATTERNS)
@given(texts=TEXTS)
def test_adversarial_unicode(pattern, texts):
    check_equal("tokenfeed", pattern, texts, vocabulary_of=pair_vocabulary)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_every_code_point_in_company(pattern):
    """Those of the first plane's start in the fast tier; `'ſ` is a way to write `'s`, and U+180E no white space."""
    for start in range(0, pick(0x4000, 0x110000), 0x4000):
        numbers = [number for number in range(start, start + 0x4000) if not 0xD800 <= number < 0xE000]
        texts = [before + chr(number) + after for number in numbers for before, after in ((" ", "!"), ("A'", "a"))]
        check_equal("tokenfeed", pattern, texts, vocabulary_of=pair_vocabulary)


FUZZED = [
    *"abcelmrstvdABSTLZ'019.,!/_-(\"\t\r\n\x00\x1c\x85\u200b\u180e\u3000\u00a0\u2028\ufeff ",
    *"\u0301ſǅʰéßЯя漢字かカ・゛\u3097한ا٣½Ⅷ",
    *(
        "  ",
        "'s",
        "'LL",
        "'ve",
        "don't",
        "e\u0301",
        "👍🏽",
        "👩‍🚀",
        "the",
        " quick",
        "World",
        " NASA",
        "x" * 20,
        "y" * 300,
    ),
]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_fuzzed_strings(pattern):
    """A million in the full tier: with a vocabulary in which all splits differ, and with one of real merges."""
    chance = random.Random(pattern)
    for number in range(pick(1, 1000)):
        texts = ["".join(chance.choices(FUZZED, k=chance.randrange(12))) for _ in range(1000)]
        texts += ["".join(chr(chance.choice((0x7F, 0x3000, 0x10FFFF)) - chance.randrange(0x7F)) for _ in range(5))]
        check_equal("tokenfeed", pattern, texts, vocabulary_of=(pair_vocabulary, golden_vocabulary)[number % 2])


@st.composite
def vocabularies(draw):
    """Any bytes as tokens, in any order: most of them are no merge of others, and some merges have lower ranks."""
    extra = draw(st.lists(st.text("ab c", min_size=2, max_size=9).map(str.encode), unique=True, max_size=40))
    tokens = draw(st.permutations([*(bytes((byte,)) for byte in range(256)), *extra]))
    return Vocabulary({token: rank for rank, token in enumerate(tokens)}, PATTERNS["gpt2"], {"<|bos|>": 500})


@given(
    vocabulary=vocabularies(), texts=st.lists(st.text("ab c", max_size=40), max_size=8), times=st.sampled_from((1, 9))
)
def test_any_ranks(vocabulary, texts, times):
    """Words of more than 255 bytes, which are merged another way, among them."""
    texts = [text * times for text in texts]
    ours, theirs = (encode_texts(make_engine(vocabulary, engine), texts, 1) for engine in ENGINES)
    np.testing.assert_array_equal(ours[0], theirs[0])
    np.testing.assert_array_equal(ours[1], theirs[1])


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


@pytest.mark.parametrize("pattern", ["nanochat", "gpt4o"])
def test_endless_runs_with_tiktoken_give_the_tokens_of_their_pieces(pattern):
    """In one piece they would take minutes to hours, or overflow the stack."""
    texts = ["before", *ENDLESS.values(), "after"]
    ids, offsets = golden_tokenizer("tiktoken", pattern).encode_batch(texts)
    whole = [text.encode("utf-16", "surrogatepass").decode("utf-16") for text in texts]
    for i, text in enumerate(whole):
        pieces = [reference(golden_vocabulary, pattern).encode_ordinary(piece) for piece in cut_runs(text, LONGEST_RUN)]
        assert ids[offsets[i] : offsets[i + 1]].tolist() == list(itertools.chain(*pieces))


def expected_of_run(pattern, unit, count):
    """Tokens of a long run of a unit from those of a shorter one: both begin and end alike, and repeat between."""
    short, period = reference(golden_vocabulary, pattern), 2520
    one, two = (short.encode_ordinary(unit * (count % period + times * period)) for times in (2, 3))
    added = len(two) - len(one)
    middle = len(one) // 2
    assert one[:middle] == two[:middle]
    assert one[middle:] == two[middle + added :]
    return one[:middle] + two[middle : middle + added] * (count // period - 2) + one[middle:]


@pytest.mark.parametrize("unit", [" ", "a", "7", ".", "\n", "漢", "A"])
@pytest.mark.parametrize("pattern", ["nanochat", *slow(*(name for name in PATTERNS if name != "nanochat"))])
def test_endless_runs(pattern, unit):
    """In one piece, in which nothing is quadratic: what tiktoken would give, if it could."""
    count = pick(200_000, 10_000_000)
    ids = golden_tokenizer("tokenfeed", pattern).encode(unit * count)
    np.testing.assert_array_equal(ids, expected_of_run(pattern, unit, count))


def test_runs_that_a_limit_cuts(monkeypatch):
    monkeypatch.setattr("tokenfeed.text.tokenizer.engines._Tokenfeed.longest_run", 1000)
    tokenizer, text = golden_tokenizer("tokenfeed"), "7" * 999 + " " + "7" * 2001
    expected = np.concatenate([tokenizer.encode(part) for part in ("7" * 999 + " " + "7" * 1000, "7" * 1000, "7")])
    np.testing.assert_array_equal(tokenizer.encode(text), expected)


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
    assert cut_runs(text, LONGEST_RUN) == expected


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
    assert cut_runs(text, LONGEST_RUN) == [text]
    assert len(places) <= 4 * len(text) / LONGEST_RUN
    assert sum(places) <= 6 * len(places)  # characters looked at: up to a space, or up to a letter


def test_engines_that_cannot_be_meant(monkeypatch):
    with pytest.raises(ArgumentError, match="there is no engine 'bpe'; choose one of tokenfeed, tiktoken"):
        choose_engine(golden_vocabulary(), "bpe")
    for engine in ENGINES:
        with pytest.raises(ArgumentError, match=r"cannot use this vocabulary with pattern '\('"):
            make_engine(Vocabulary(golden_vocabulary().ranks, "(", {}), engine)
    monkeypatch.setattr("tokenfeed.text.tokenizer.engines.find_spec", lambda name: None)
    assert choose_engine(golden_vocabulary()) == "tokenfeed"
    with pytest.raises(DependencyError, match=r"tokenfeed\[text\]"):
        choose_engine(golden_vocabulary(), "tiktoken")


UNKNOWN = [
    r"\w+|\W+",  # classes that are not in our table
    r"\d+\.\d+|\p{L}+ ?|.",
    r"\p{L}+?|.|\n",  # lazy
    r"(?=a)\p{L}+|[^a]|a",  # looks ahead for what is there
    r"[\p{L}&&[^a]]+|[^b]|b",  # sets of sets
    r"(?:a|b)++|[^a]|a",  # possessive groups
    r"(?:a?)+|[^a]",  # repeats of nothing
    r"\S+",  # leaves white space out
    r"a+b|[^a]",  # and this an a without b
]


@pytest.mark.parametrize("pattern", UNKNOWN)
def test_other_patterns_are_left_to_tiktoken(pattern):
    assert compile_pattern(pattern) is None
    vocabulary = Vocabulary(golden_vocabulary().ranks, pattern, {})
    assert choose_engine(vocabulary) == "tiktoken"
    with pytest.raises(ArgumentError, match="Leave engine out"):
        choose_engine(vocabulary, "tokenfeed")


OWN = [r"a+b|[^a]|a", r"(?:ab|a)(?!b)|\S|\s+", r"[^\P{L}a-f]+|[a-f]{2,3}+|[\s\S]", r"(?i:stop|sto|s)|\n$|[^x]|x"]


@pytest.mark.parametrize("pattern", OWN)
@given(texts=st.lists(st.text(st.sampled_from("abcfghxsStTOop \nſ"), max_size=40), max_size=5))
def test_patterns_of_ones_own(pattern, texts):
    assert compile_pattern(pattern) is not None
    vocabulary = Vocabulary(pair_vocabulary("gpt2").ranks, pattern, {})
    ours, theirs = (encode_texts(_engine(pattern, engine), texts, 1) for engine in ENGINES)
    assert vocabulary.pattern == pattern
    np.testing.assert_array_equal(ours[0], theirs[0])


@cache
def _engine(pattern, engine):
    return make_engine(Vocabulary(pair_vocabulary("gpt2").ranks, pattern, {}), engine)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_sixteen_threads_take_less_than_64_mb_however_long_the_texts():
    """In a process of its own, whose private memory is measured beyond that of the vocabulary."""
    code = """
import re, sys
from pathlib import Path
sys.path[:0] = sys.argv[1:]
from golden import golden_vocabulary
from tokenfeed.text.tokenizer.engines import make_engine

def private():
    lines = Path("/proc/self/smaps_rollup").read_text()
    return int(re.search(r"Private_Dirty: +(\\d+) kB", lines)[1]) * 1024 / 1e6  # clean pages are those of libraries

engine = make_engine(golden_vocabulary(), "tokenfeed")
engine.encode(["first use"] * 64, 16)
words = [f"w{number:x} Ünï{number % 700}cödé 漢字{number}\\n" for number in range(10_000)]
long, short = ["".join(words) * 4] * 16, ["".join(words[i : i + 100]) for i in range(0, 10_000, 100)] * 16
before = private()
for _ in range(2):
    engine.encode(long, 16)
    engine.encode(short, 16)
print(private() - before)
"""
    paths = [path for path in sys.path if path]
    done = subprocess.run([sys.executable, "-c", code, *paths], capture_output=True, text=True, check=True)
    assert float(done.stdout) <= 64


def test_caches_of_sixteen_threads_are_small_and_give_the_same_tokens(monkeypatch):
    assert sum(make_cache(number)[1].nbytes for number in range(16)) <= 50e6
    monkeypatch.setattr(engines, "make_cache", lambda _: make_cache(2))
    # More words, short and long, than a small cache has room for; then the same again.
    texts = [" ".join(f"{number:x} {'y' * (number % 50)}{number}" for number in range(pick(20_000, 200_000)))] * 2
    small, offsets = make_engine(golden_vocabulary(), "tokenfeed").encode(texts, 1)
    expected = make_engine(golden_vocabulary(), "tiktoken").encode(texts, 1)
    assert (small == expected[0]).all()
    assert (offsets == expected[1]).all()
