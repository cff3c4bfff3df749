"""Map functions: columns and spans of a user's making, in this process and in others."""

import json
import re
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tokenfeed
from golden import golden_tokenizer
from preparing import make_documents, picture, write_jsonl
from tokenfeed.errors import ArgumentError
from tokenfeed.preparation import Characters, annotates
from tokenfeed.preparation.mapping import MapOrigin, tile
from tokenfeed.store.verify import verify

TOKENIZER = golden_tokenizer("tiktoken")

FILE = """
import re
import numpy as np
from tokenfeed.preparation import Characters, annotates

@annotates(columns={"weight": "float32", "place": ("int16", (2,))}, spans={"concepts": "json", "halves": "utf8"})
def annotate(text, kept, tokens):
    if kept["url"].endswith("7"):
        return None
    half = len(tokens) // 2
    return {
        "weight": np.full(len(tokens), kept["score"]),
        "place": np.stack([np.arange(len(tokens)), -np.arange(len(tokens))], axis=1) % 1000,
        "concepts": Characters([(one.start(), one.end(), {"word": one[0]}) for one in re.finditer("cat|語|the", text)]),
        "halves": [(0, half, "first"), (half, len(tokens), "second")],
    }
"""


def prepare(inputs, out, **options):
    return tokenfeed.prepare(inputs, out, **{"tokenizer": TOKENIZER, "workers": 0, "val": None, **options})


@pytest.fixture
def inputs(tmp_path):
    documents = make_documents(40)
    write_jsonl(tmp_path / "text.jsonl", documents)
    (tmp_path / "mine.py").write_text(FILE)
    return tmp_path / "text.jsonl", documents


def test_concepts(inputs, tmp_path):
    """Spans over words of the text cover the tokens that hold them; columns are the function's; None leaves out."""
    path, documents = inputs
    options = {"map": f"{tmp_path / 'mine.py'}:annotate", "keep": ["url", "score"], "slice_bytes": 5000}
    report = prepare(path, tmp_path / "store", **options)
    assert report.total.dropped == report.left_out == 4
    assert verify(tmp_path / "store").ok
    store = tokenfeed.open(tmp_path / "store")
    kept = [one for one in documents if not one["url"].endswith("7")]
    view = store.documents(columns=["weight", "place"], spans=["concepts", "halves"])
    assert len(view) == len(kept)
    seen = 0
    for one, sample in zip(kept, view, strict=True):
        tokens = TOKENIZER.encode(one["text"], prepend="<|bos|>")
        np.testing.assert_array_equal(sample.tokens, tokens)
        assert sample.payload == {"url": one["url"], "score": one["score"]}
        np.testing.assert_array_equal(sample.column("weight"), np.full(len(tokens), one["score"], np.float32))
        assert sample.column("place")[-1].tolist() == [(len(tokens) - 1) % 1000, -(len(tokens) - 1) % 1000]
        words = [span for span in sample.spans["concepts"] if span.payload is not None]
        assert [span.payload["word"] for span in words] == re.findall("cat|語|the", one["text"])
        for span in words:
            covered = TOKENIZER.decode_bytes(tokens[span.start : span.stop])
            assert span.payload["word"].encode() in covered or span.start == span.stop
            seen += 1
        if len(tokens) > 1:
            assert [span.payload for span in sample.spans["halves"]] == ["first", "second"]
    assert seen > 50


def test_every_way_to_name_a_function_gives_the_same_bytes(inputs, tmp_path, monkeypatch):
    path, _ = inputs
    monkeypatch.syspath_prepend(tmp_path)
    import mine

    options = {"keep": ["url", "score"], "slice_bytes": 5000}
    prepare(path, tmp_path / "file", map=f"{tmp_path / 'mine.py'}:annotate", **options)
    prepare(path, tmp_path / "module", map="mine:annotate", **options)
    prepare(path, tmp_path / "function", map=mine.annotate, **options)
    prepare(path, tmp_path / "pool", map=mine.annotate, workers=2, **options)
    prepare(path, tmp_path / "pool file", map=f"{tmp_path / 'mine.py'}:annotate", workers=2, **options)
    expected = picture(tmp_path / "file")
    for name in ("module", "function", "pool", "pool file"):
        assert picture(tmp_path / name) == expected, name


def test_an_edited_function_is_another_recipe(inputs, tmp_path):
    path, _ = inputs
    options = {"map": f"{tmp_path / 'mine.py'}:annotate", "keep": ["url", "score"]}
    prepare(path, tmp_path / "store", **options)
    (tmp_path / "mine.py").write_text(FILE.replace("first", "1st"))
    with pytest.raises(ArgumentError, match="map was 'mine:annotate"):
        prepare(path, tmp_path / "store", **options)


def test_payloads_of_documents_from_the_function(inputs, tmp_path):
    path, documents = inputs

    @annotates(spans={"documents": "utf8"})
    def annotate(text, kept, tokens):
        return {"documents": f"{len(text)} characters"}

    prepare(path, tmp_path / "store", map=annotate)
    view = tokenfeed.open(tmp_path / "store").documents()
    payloads = [one.payload for one in view]
    assert payloads == [f"{len(one['text'])} characters" for one in documents]


@pytest.mark.slow
def test_a_script_without_a_guard_is_told(inputs, tmp_path):
    """A function of the script itself travels as the script's source; the call in it must not be made again."""
    path, _ = inputs
    TOKENIZER.save(tmp_path / "tokenizer")
    call = f"print(tokenfeed.prepare({str(path)!r}, OUT, tokenizer={str(tmp_path / 'tokenizer')!r}, workers=1, "
    call += "map=annotate, keep=['url', 'score']).total.documents)"
    script = "import tokenfeed\n" + FILE + call.replace("OUT", repr(str(tmp_path / "a")))
    (tmp_path / "script.py").write_text(script)
    done = subprocess.run([sys.executable, tmp_path / "script.py"], capture_output=True, text=True, timeout=100)
    assert done.returncode != 0
    assert 'if __name__ == "__main__"' in done.stderr
    guarded = (
        "import tokenfeed\n"
        + FILE
        + 'if __name__ == "__main__":\n    '
        + call.replace("OUT", repr(str(tmp_path / "b")))
    )
    (tmp_path / "script.py").write_text(guarded)
    done = subprocess.run([sys.executable, tmp_path / "script.py"], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout.strip()) == (0, "36"), done.stderr


def plain(text, kept, tokens):
    return {}


@annotates(columns={"tokens": "uint8"})
def named_tokens(text, kept, tokens):
    return {}


@annotates(columns={"weight": "float32"})
def too_few(text, kept, tokens):
    return {"weight": np.ones(len(tokens) - 1)}


@annotates(spans={"concepts": "json"})
def overlapping(text, kept, tokens):
    return {"concepts": [(0, 1, "a"), (0, 1, "b")]}


@annotates(columns={"weight": "float32"}, spans={"concepts": "json"})
def forgetful(text, kept, tokens):
    return {"weight": np.ones(len(tokens))}


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (plain, "annotates"),
        (named_tokens, "'tokens'"),
        (too_few, "items of column 'weight'; the document has"),
        (overlapping, r"\[0, 1\) cannot be a span of 'concepts'.*the span before ends at 1"),
        (forgetful, r"returned \['weight'\]; it declares"),
        ("nowhere:f", "no module nowhere"),
        ("f", "file.py:function"),
        ("json:nothing", "no function 'nothing'"),
    ],
)
def test_functions_that_cannot_be_meant(inputs, tmp_path, function, message):
    path, _ = inputs
    with pytest.raises(ArgumentError, match=message):
        prepare(path, tmp_path / "store", map=function)
    assert not (tmp_path / "store" / "000000-000000-00000").exists()


def test_a_function_that_cannot_travel(inputs, tmp_path):
    path, _ = inputs
    with pytest.raises(ArgumentError, match="workers=0"):
        prepare(path, tmp_path / "store", map=annotates()(lambda text, kept, tokens: {}), workers=1)
    prepare(path, tmp_path / "store", map=annotates()(lambda text, kept, tokens: {}))


def test_errors_of_the_function_come_back_as_they_are(inputs, tmp_path):
    path, _ = inputs
    (tmp_path / "mine.py").write_text(FILE.replace("half = ", "half = 1 // 0 if len(tokens) > 3 else "))
    for workers in (0, 1):
        with pytest.raises(ZeroDivisionError) as caught:
            prepare(
                path,
                tmp_path / f"{workers}",
                map=f"{tmp_path / 'mine.py'}:annotate",
                keep=["url", "score"],
                workers=workers,
            )
    assert "in annotate" in "".join(caught.value.__notes__)
    assert "slice 0 of text.jsonl" in "".join(caught.value.__notes__)


SPANS = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=6)


@given(st.dictionaries(st.sampled_from("ab"), SPANS, min_size=1), st.integers(0, 12))
def test_tiles_cover_every_item_once(tables, num_items):
    """Against a table of which span each item is in, written plainly."""
    chosen = {}
    for table, spans in tables.items():
        end, kept = 0, []
        for start, stop in sorted(spans):
            if end <= start <= stop <= num_items:
                kept.append((start, stop, f"{table}{len(kept)}"))
                end = stop
        chosen[table] = kept
    begun = tile(chosen, num_items)
    assert begun[0][0] == 0
    assert begun[0][1].keys() == chosen.keys()
    assert [start for start, _ in begun] == sorted(start for start, _ in begun)
    for table, spans in chosen.items():
        starts = [(start, new[table]) for start, new in begun if table in new]
        stops = [*(start for start, _ in starts[1:]), num_items]
        made = [(start, stop, payload) for (start, payload), stop in zip(starts, stops, strict=True)]
        assert [one for one in made if one[2] is not None] == spans
        gaps = [one for one in made if one[2] is None]
        assert all(stop > start for start, stop, _ in gaps) or (not spans and num_items == 0)


@given(st.text(alphabet="ab é語🙂.\n", max_size=40), st.data())
def test_characters_to_tokens(text, data):
    """Each span covers the tokens that hold any part of it, less those the one before it has."""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8, unique=True)))
    spans = [(start, stop, start) for start, stop in zip(cuts[::2], cuts[1::2], strict=False)]
    tokens = TOKENIZER.encode(text, prepend="<|bos|>")
    found = Characters(spans).to_tokens(text, TOKENIZER.count_bytes(tokens))
    lengths = TOKENIZER.token_bytes[tokens]
    ends = np.cumsum(lengths)
    free = 0
    for (start, stop, _), (first, last, payload) in zip(spans, found, strict=True):
        assert payload == start
        byte_start, byte_stop = len(text[:start].encode()), len(text[:stop].encode())
        touched = np.flatnonzero((ends > byte_start) & (ends - lengths < byte_stop) & (lengths > 0))
        assert list(range(first, last)) == [one for one in touched if one >= free]
        free = max(free, last)


def test_characters_that_overlap_or_lie_outside():
    tokens = TOKENIZER.encode("abc")
    for spans in ([(0, 2, 1), (1, 3, 2)], [(0, 4, 1)], [(1, 1, 1)], [(-1, 2, 1)]):
        with pytest.raises(ArgumentError, match="cannot be a span"):
            Characters(spans).to_tokens("abc", TOKENIZER.count_bytes(tokens))


def test_names_say_nothing_of_where_files_lie(tmp_path):
    (tmp_path / "mine.py").write_text(FILE)
    assert str(tmp_path) not in json.dumps(MapOrigin.find(f"{tmp_path / 'mine.py'}:annotate").name)
