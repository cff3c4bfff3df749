"""`Tokenizer`: arrays out, text back, and what is refused."""

import itertools
import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tokenfeed
from golden import GOLDEN, RANKS, SPECIAL_TOKENS, golden_texts, golden_tokenizer, golden_tokens, golden_vocabulary
from tiers import slow
from tokenfeed.errors import ArgumentError, FormatError, MissingError
from tokenfeed.kernels.packing import NONE, surround
from tokenfeed.text.tokenizer.tokenizer import Tokenizer
from tokenfeed.text.tokenizer.vocabulary import PATTERNS, Vocabulary

TEXTS = ["hello world", "", "it's 12345 <|bos|>", "日本語 é\n\n", " "]


@pytest.fixture
def tokenizer():
    return golden_tokenizer()


def surround_plainly(ids, offsets, before, after):
    """The plain twin of the kernel."""
    parts = [[*before, *ids[start:stop], *after] for start, stop in itertools.pairwise(offsets)]
    ends = np.cumsum([0, *map(len, parts)])
    return [token for part in parts for token in part], ends.tolist()


@given(
    lengths=st.lists(st.integers(0, 70), max_size=20),
    first=st.sampled_from([NONE, 0, 65_535]),
    last=st.sampled_from([NONE, 0, 7]),
    dtype=st.sampled_from([np.uint16, np.uint32, np.int64]),
)
def test_surround_equals_its_plain_twin(lengths, first, last, dtype):
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
    ids = np.arange(offsets[-1], dtype=np.uint32)
    before, after = ([] if token == NONE else [token] for token in (first, last))
    expected, expected_offsets = surround_plainly(ids.tolist(), offsets.tolist(), before, after)
    for array in (ids, offsets):
        array.flags.writeable = False
    out, out_offsets = np.full(len(expected), 9, dtype), np.full(len(offsets), 9, np.int64)
    surround(ids, offsets, first, last, out, out_offsets)
    assert out.tolist() == expected
    assert out_offsets.tolist() == expected_offsets


@pytest.mark.parametrize("engine", ["tokenfeed", "tiktoken"])
@pytest.mark.parametrize("prepend", [None, "<|bos|>", 4087, np.uint16(0)])
@pytest.mark.parametrize("append", [None, "<|user_end|>", 5])
def test_prepend_and_append(engine, prepend, append):
    tokenizer = golden_tokenizer(engine)
    before, after = (
        [] if token is None else [SPECIAL_TOKENS.get(token, token) if isinstance(token, str) else int(token)]
        for token in (prepend, append)
    )
    ids, offsets = tokenizer.encode_batch(TEXTS)
    expected, expected_offsets = surround_plainly(ids.tolist(), offsets.tolist(), before, after)
    ids, offsets = tokenizer.encode_batch(TEXTS, prepend=prepend, append=append)
    assert ids.tolist() == expected
    assert offsets.tolist() == expected_offsets
    assert ids.dtype == np.uint16
    assert offsets.dtype == np.int64
    assert ids.flags.writeable
    assert ids.flags.owndata
    assert offsets.flags.writeable
    assert tokenizer.encode(TEXTS[2], prepend=prepend, append=append).tolist() == expected[offsets[2] : offsets[3]]


def test_no_texts(tokenizer):
    for prepend in (None, "<|bos|>"):
        ids, offsets = tokenizer.encode_batch([], prepend=prepend)
        assert ids.shape == (0,)
        assert ids.dtype == np.uint16
        assert offsets.tolist() == [0]


def test_texts_of_any_sequence(tokenizer):
    expected = tokenizer.encode_batch(TEXTS)[0].tolist()
    for texts in (tuple(TEXTS), np.array(TEXTS), np.array(TEXTS, object)):
        assert tokenizer.encode_batch(texts)[0].tolist() == expected


def test_dtypes(tokenizer):
    expected = tokenizer.encode("hello world").tolist()
    for dtype in ("uint16", "int16", "uint32", "int32", "<i8", np.int64):
        for prepend in (None, 7):
            ids, _ = tokenizer.encode_batch(["hello world"], dtype=dtype, prepend=prepend)
            assert ids.dtype == np.dtype(dtype)
            assert ids.tolist() == ([7] if prepend else []) + expected
    for dtype in ("uint8", "int8", "float32"):
        with pytest.raises(ArgumentError, match=f"dtype {dtype} cannot hold ids up to 4095; use uint16"):
            tokenizer.encode_batch(["a"], dtype=dtype)


@pytest.mark.parametrize(("size", "dtype"), [(65_536, "uint16"), (65_537, "uint32")])
def test_the_narrowest_dtype(size, dtype):
    ranks = {bytes((byte,)): byte for byte in range(256)}
    ranks |= {(number).to_bytes(2, "big"): number for number in range(256, size - 1)}
    tokenizer = Tokenizer(Vocabulary(ranks, PATTERNS["gpt4"], {"<s>": size - 1}))
    assert tokenizer.vocab_size == size
    assert tokenizer.dtype == tokenizer.encode("ab").dtype == dtype
    assert tokenizer.encode("", append="<s>").tolist() == [size - 1]


@pytest.mark.parametrize(
    ("texts", "options", "message"),
    [
        ("a text", {}, "encode_batch expects a list"),
        (["a", None], {}, r"texts\[1\] is a NoneType"),
        (["a", "b", b"c"], {}, r"texts\[2\] is a bytes"),
        ([5], {}, r"texts\[0\] is a int"),
        (["a"], {"threads": 0}, "threads is 0"),
        (["a"], {"prepend": 4096}, "prepend is 4096, which is not a token"),
        (["a"], {"append": -1}, "append is -1"),
    ],
)
def test_what_cannot_be_encoded(tokenizer, texts, options, message):
    with pytest.raises(ArgumentError, match=message):
        tokenizer.encode_batch(texts, **options)


@pytest.mark.parametrize("engine", ["tokenfeed", "tiktoken"])
@given(text=st.text())
def test_decoding_gives_the_text_back(engine, text):
    tokenizer = golden_tokenizer(engine)
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode_bytes(ids) == text.encode()
    assert tokenizer.token_bytes[ids].sum() == len(text.encode())


def test_decoding(tokenizer):
    assert tokenizer.decode([]) == ""
    assert tokenizer.decode(np.array([4087, 104, 105], np.uint16)) == "<|bos|>hi"
    assert tokenizer.decode(104) == "h"
    assert tokenizer.decode([0xE6, 104]) == "\ufffdh"
    assert tokenizer.decode_bytes([0xE6, 104]) == b"\xe6h"
    for ids, message in (
        ([4096], "no token has id 4096; ids go from 0 to 4095"),
        ([-1], "no token has id -1"),
        ([1.0], "float64"),
        ([[1]], r"shape \(1, 1\)"),
    ):
        with pytest.raises(ArgumentError, match=message):
            tokenizer.decode(ids)
    holes = Tokenizer(Vocabulary({bytes((byte,)): byte for byte in range(256)}, ".", {"<s>": 300}))
    with pytest.raises(ArgumentError, match="no token has id 299"):
        holes.decode([104, 299])


def test_special_tokens(tokenizer):
    assert tokenizer.bos_id == tokenizer.special_id("<|bos|>") == 4087
    assert 4087 not in tokenizer.encode("<|bos|>")
    with pytest.raises(MissingError, match="there is no special token '<s>'"):
        tokenizer.encode_batch(["a"], prepend="<s>")
    without = Tokenizer(Vocabulary(golden_vocabulary().ranks, PATTERNS["gpt2"], {"<s>": 5000}))
    with pytest.raises(MissingError, match=r"bos=…\), one of \['<s>'\]"):
        without.bos_id  # noqa: B018
    assert without.encode("<s>").tolist() == golden_tokenizer().encode("<s>").tolist()


def test_ranks_with_what_they_do_not_say():
    made = Tokenizer.from_ranks(RANKS, pattern="nanochat", special_tokens=SPECIAL_TOKENS, bos="<|bos|>")
    by_regex = (GOLDEN / "tokenizer" / "pattern.txt").read_text()
    assert made.vocabulary == golden_vocabulary()
    assert Tokenizer.from_ranks(RANKS, pattern=by_regex, special_tokens={}).vocab_size == 4087
    with pytest.raises(ArgumentError, match="both have id 300"):
        Tokenizer.from_ranks(RANKS, pattern="gpt2", special_tokens={"<s>": 300})


def test_ranks_that_are_no_vocabulary(tmp_path):
    (tmp_path / "ranks").write_text("YQ== 0\n")
    with pytest.raises(FormatError, match="ranks: ranks lacks 255 single bytes"):
        Tokenizer.from_ranks(tmp_path / "ranks", pattern="gpt2", special_tokens={})


def test_saved_and_loaded(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "saved")
    tokenizer.save(str(tmp_path / "one.json"))
    for path in (tmp_path / "saved", tmp_path / "saved" / "tokenizer.json", str(tmp_path / "one.json")):
        loaded = Tokenizer.load(path)
        assert loaded.vocabulary == tokenizer.vocabulary
        assert loaded.digest == tokenizer.digest
        assert loaded.bos_id == 4087
    other = Tokenizer.load(tmp_path / "saved", bos="<|user_start|>", engine="tiktoken")
    assert other.bos_id == 4088
    assert other.digest == tokenizer.digest
    assert other.engine_name == "tiktoken"
    with pytest.raises(ArgumentError, match="bos '<s>' is not a special token"):
        Tokenizer.load(tmp_path / "saved", bos="<s>")


def test_saving_where_nothing_can_be_written(tokenizer, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="cannot write"):
        tokenizer.save(tmp_path / "file" / "below")


def test_repr(tokenizer):
    assert repr(tokenizer) == "Tokenizer(4,096 tokens, nanochat pattern, bos '<|bos|>', eos None, engine tokenfeed)"
    own = Tokenizer(Vocabulary(golden_vocabulary().ranks, r"\p{L}+|\P{L}", {}), engine="tiktoken")
    assert repr(own) == "Tokenizer(4,087 tokens, own pattern, bos None, eos None, engine tiktoken)"


@pytest.mark.parametrize("engine", ["tokenfeed", "tiktoken"])
def test_pickled(engine):
    tokenizer = golden_tokenizer(engine)
    tokenizer.encode("a")
    data = pickle.dumps(tokenizer)
    copy = pickle.loads(data)
    assert len(data) < 100_000  # the vocabulary, and nothing that was derived from it
    assert copy.engine_name == engine
    np.testing.assert_array_equal(
        copy.encode_batch(golden_texts()[:50])[0], tokenizer.encode_batch(golden_texts()[:50])[0]
    )


@pytest.mark.parametrize("engine", ["tokenfeed", "tiktoken"])
def test_several_threads_at_once(engine):
    tokenizer = golden_tokenizer(engine)
    texts = golden_texts()[:1000]
    expected = golden_tokens()[0][: golden_tokens()[1][1000]]
    with ThreadPoolExecutor(6) as threads:
        for ids, _ in threads.map(lambda number: tokenizer.encode_batch(texts, threads=1 + number % 3), range(6)):
            np.testing.assert_array_equal(ids, expected)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("engine", ["tokenfeed", *slow("tiktoken")])
def test_a_forked_process_encodes_too(engine):
    """Threads do not live on in it: short texts, and one of 400 kB in a batch."""
    code = f"""
import os, sys
from golden import golden_texts, golden_tokenizer
tokenizer = golden_tokenizer({engine!r})
texts = [*golden_texts()[:200], " ".join(golden_texts()[:600]), *golden_texts()[200:400]]
def encode():
    return [tokenizer.encode_batch(texts, threads=threads)[0].tolist() for threads in (2, 8) * 3]
expected = encode()
child = os.fork()
if not child:
    os._exit(0 if encode() == expected else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    tests = f"{Path(__file__).parents[2]}:{os.environ.get('PYTHONPATH', '')}"
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": tests}, check=True, timeout=60)


def test_a_tokenizer_with_an_encode_batch_of_its_own_is_asked_by_streams(tmp_path):
    class Upper(tokenfeed.Tokenizer):
        def encode_batch(self, texts, **options):
            return super().encode_batch([text.upper() for text in texts], **options)

    pq.write_table(pa.table({"text": ["one two", "three"]}), tmp_path / "a.parquet")
    own = Upper(golden_vocabulary())
    feed = tokenfeed.stream(tmp_path, own, batch_size=1, length=8, epochs=1, val=None, rank=0, world_size=1)
    seen = own.decode([token for batch in feed for token in np.asarray(batch.inputs)[0]])
    assert "ONE TWO" in seen
    assert "one" not in seen
