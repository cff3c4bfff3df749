"""However a file is cut, and however little of it is read at a time: the documents are those of a plain loop."""

import gzip
import json
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from golden import golden_tokenizer
from tokenfeed.errors import FormatError
from tokenfeed.preparation.inputs import cut, find_inputs, read_slice
from tokenfeed.text.sources import json_lines
from tokenfeed.text.sources.files import TextFiles
from tokenfeed.text.sources.json_lines import LineError, parse_line
from tokenfeed.text.sources.portions import TextRules, as_str
from tokenfeed.text.streaming.documents import FileDocuments
from tokenfeed.text.streaming.lanes import LaneCursor

CHARACTERS = st.characters(exclude_categories=["Cs"])
TEXT = st.one_of(st.text(CHARACTERS, max_size=40), st.sampled_from(["", 'a "b" \\ \n\t', "é😀" * 90, "x" * 700]))
VALUE = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), TEXT),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXT, inner, max_size=3)),
    max_leaves=6,
)
FIELDS = st.lists(
    st.tuples(st.sampled_from(["text", "text", "meta", "id", "tex", "t\u00e9xt"]), st.one_of(TEXT, VALUE)), max_size=5
)
ODD_LINES = [
    *(b"", b" ", b"\t \r", b"\x0b\x0c", b"{}", b"[]", b"7", b"null", b'"text"', b"{", b"}", b"\xff\xfe", b"\\"),
    *(b'{"text": "a"} x', b'{"text": "a"', b'{"text": "a}', b'{"text": "\xff"}', b'{"other\xff": 1, "text": "a"}'),
    *(b'{"text": "\\ud800"}', b'{"text": "\\udc00\\ud800"}', b'{"text": "\\ud83d\\ude00"}', b'{"text": "\\ud83d\\n"}'),
    *(b'{"text": "\\u00e9\\u20ac\\u0041\\/\\b\\f\\r"}', b'{"text": "\\x"}', b'{"text": "\\u12g4"}', b'{"text": "\\u12'),
    *(b'{"te\\u0078t": "a"}', b'{"text": "a", "text": "b"}', b'{"text": "\xff", "text": "b"}', b'{"text": null}'),
    *(b'{"text": 1}', b'{"text": ["a"]}', b'{"text": {"text": "a"}}', b'{"meta": {"text": "a"}}', b'{"text": true}'),
    *(
        b'{"text": "a", "meta": "\\ud800"}',
        b'{"meta": [{"\\ud800": 1}], "text": "a"}',
        b'{"id": "\\ud800", "text": "a"}',
    ),
    *(b'{"text": "a", "id": 01}', b'{"text": "a", "id": 1.}', b'{"text": "a", "id": -}', b'{"text": "a", "id": 1e+}'),
    *(b'{"text": "a", "id": -0.5E-3}', b'{"text": "a", "id": [NaN, -Infinity, Infinity]}', b'{"text": "a", "id": nul}'),
    *(b'{"text": "a",}', b'{"text": "a" "b"}', b"{'text': 1}", b'{"text": "a", "id": [1,]}', b'{"text": "a", "id": [}'),
    *(b'{"text": "tab\there"}', b'{"text": "a", "id": [[], {}, [[1], 2]]}', b'{"text": "a", "id": {"a": [1}}', b"-"),
    *(
        b' { "text" :\t"a" , "meta" : [ 1 , { } ] } \r',
        b'{"text": "\xc3\xa9\xf0\x9f\x98\x80"}',
        b'{"text": "\xed\xa0\x80"}',
    ),
    *(b'{"text": "a", "id": ' + b"[" * 300 + b"]" * 300 + b"}", b'{"text": "a", "id": ' + b"9" * 5000 + b"}"),
    *(b'{"text": "a", "id": "' + b"9" * 5000 + b'"}', b'{"meta": ' + b"[" * 200 + b"]" * 200 + b', "text": "b"}'),
]


@st.composite
def lines(draw):
    if draw(st.booleans()):
        return draw(st.sampled_from(ODD_LINES))
    pairs = draw(FIELDS)
    ascii_only, colon = draw(st.booleans()), draw(st.sampled_from([":", " : "]))
    members = [f"{json.dumps(key)}{colon}{json.dumps(value, ensure_ascii=ascii_only)}" for key, value in pairs]
    return ("{" + ",".join(members) + "}").encode()


@st.composite
def contents(draw):
    """The bytes of a file whose first line has all the keys, so that none is missing everywhere."""
    end = draw(st.sampled_from([b"\n", b"\r\n"]))
    first = b'{"text": "", "meta": null, "id": 1}'
    body = end.join([first, *draw(st.lists(lines(), max_size=12))])
    bom = b"\xef\xbb\xbf" if draw(st.booleans()) else b""
    return bom + body + (end if draw(st.booleans()) else b"")


def fits_utf8(value) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def plain_documents(content: bytes, keep: tuple[str, ...]):
    """(documents, malformed, null) by the plainest way there is."""
    documents, malformed, null = [], 0, 0
    for line in content.removeprefix(b"\xef\xbb\xbf").split(b"\n"):
        if not line or line.isspace():
            continue
        try:
            fields = json.loads(str(line, "utf-8"))
        except ValueError:
            malformed += 1
            continue
        if not isinstance(fields, dict) or "text" not in fields:
            malformed += 1
            continue
        text, kept = fields["text"], {name: fields.get(name) for name in keep}
        if text is None:
            null += 1
        elif not isinstance(text, str) or not fits_utf8([text, kept]):
            malformed += 1
        else:
            documents.append((text, kept))
    return documents, malformed, null


def joined(portions):
    """(documents, malformed, null) of portions."""
    documents, malformed, null = [], 0, 0
    for portion in portions:
        malformed += portion.num_malformed
        null += portion.num_null
        documents += zip(portion.texts, portion.kept, strict=True)
    return documents, malformed, null


def read_all(path: Path, rules: TextRules, slice_bytes: int):
    (file,) = find_inputs(path)
    portions, total = [], 0
    for part in cut(0, file, slice_bytes=slice_bytes):
        of_part = list(read_slice(file, part, rules))
        reached = [portion.input_bytes for portion in of_part]
        assert reached == sorted(reached)
        total += reached[-1]
        portions += of_part
    assert total == file.size
    return joined(portions)


def same(left, right) -> bool:
    """Equal, NaN to NaN."""
    return json.dumps(left) == json.dumps(right)


@given(
    contents(),
    st.integers(1, 400),
    st.integers(1, 60),
    st.sampled_from([(), ("meta",), ("meta", "id")]),
)
def test_the_documents_do_not_depend_on_the_cuts(content, slice_bytes, portion_bytes, keep):
    expected = plain_documents(content, keep)
    rules = TextRules(keep=keep, on_error="skip", portion_bytes=portion_bytes)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.jsonl")
        path.write_bytes(content)
        assert same(read_all(path, rules, slice_bytes), expected)
        path = Path(folder, "a.jsonl.gz")
        path.write_bytes(gzip.compress(content))
        assert same(read_all(path, rules, slice_bytes), expected)


@pytest.mark.parametrize("line", ODD_LINES)
def test_odd_lines_are_what_json_says(tmp_path, line):
    content = b'{"text": "first", "meta": 1}\n' + line + b'\n{"text": "last", "meta": 2}'
    (tmp_path / "a.jsonl").write_bytes(content)
    for keep in [(), ("meta",)]:
        rules = TextRules(keep=keep, on_error="skip")
        assert same(read_all(tmp_path / "a.jsonl", rules, 1 << 20), plain_documents(content, keep))


def outcome(parse):
    try:
        return parse()
    except LineError:
        return None


@given(lines())
@example(b'{"text": "a", "meta": 18446744073709551616}')
@example(b'{"text": "a", "meta": [18446744073709551616]}')
@example(b'{"text": "a", "meta": -1e300}')
def test_lines_say_the_same_without_orjson(line):
    assert json_lines._fast_loads is not None, "orjson is part of the development environment"
    with_orjson = outcome(lambda: parse_line(line, "text", ("meta",)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_lines, "_fast_loads", None)
        without = outcome(lambda: parse_line(line, "text", ("meta",)))
    assert same(with_orjson, without)
    assert (with_orjson is None) == (without is None)


@st.composite
def files_of_text(draw):
    """(name, bytes) of a file of any format."""
    ending = draw(st.sampled_from([".jsonl", ".jsonl.gz", ".ndjson.zst", ".txt", ".txt.gz", ".parquet"]))
    if ending == ".parquet":
        texts = draw(st.lists(st.one_of(st.none(), TEXT), min_size=1, max_size=12))
        column = pa.array([None if text is None else text.encode() for text in texts], pa.binary())
        if draw(st.booleans()):
            column = pa.array(texts, pa.string())
        sink = pa.BufferOutputStream()
        pq.write_table(pa.table({"text": column}), sink, row_group_size=draw(st.integers(1, 5)))
        return f"a{ending}", sink.getvalue().to_pybytes()
    if ".txt" in ending:
        data = draw(st.one_of(TEXT.map(str.encode), st.binary(max_size=9)))
    else:
        good = st.builds(lambda text: json.dumps({"text": text}).encode(), st.one_of(st.none(), TEXT))
        end = draw(st.sampled_from([b"\n", b"\r\n", b"\n\n"]))
        data = end.join(draw(st.lists(st.one_of(good, good, good, lines()), max_size=8)))
    return f"a{ending}", compressed(ending, data)


def compressed(ending: str, data: bytes) -> bytes:
    if ending.endswith(".gz"):
        return gzip.compress(data)
    return pa.Codec("zstd").compress(data, asbytes=True) if ending.endswith(".zst") else data


def streamed(path: Path) -> list[str]:
    """The documents that `stream` would encode in one epoch."""
    files = TextFiles.find(path)
    if not files.num_groups(0):
        return []
    documents = FileDocuments(files, golden_tokenizer(), refill_size=3)
    try:
        chunks = documents.read(0, 1, LaneCursor(0, 0, 0, 0), epochs=1)
        return [as_str(text) for chunk in chunks for text in chunk.content]
    except FormatError as error:
        if "found no document in a whole epoch" not in str(error):
            raise
        return []


def prepared(path: Path, slice_bytes: int) -> list[str]:
    (file,) = find_inputs(path)
    portions = []
    for part in cut(0, file, slice_bytes=slice_bytes):
        portions += read_slice(file, part, TextRules(portion_bytes=50))
    return [text for text, _ in joined(portions)[0]]


@given(files_of_text(), st.integers(1, 300))
def test_stream_prepare_and_training_read_the_same_documents(file, slice_bytes):
    """Or they all refuse the file, with one kind of error, whose message names it."""
    name, data = file
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, name)
        path.write_bytes(data)
        readers = [
            lambda: streamed(path),
            lambda: prepared(path, slice_bytes),
            lambda: list(TextFiles.find(path).documents()),
        ]
        outcomes = []
        for reader in readers:
            try:
                outcomes.append(reader())
            except FormatError as error:
                assert name in str(error)
                outcomes.append((type(error), str(error).partition(" on_error=")[0].rstrip(".")))
        assert outcomes[0] == outcomes[1] == outcomes[2]


@given(
    st.lists(st.one_of(st.none(), TEXT), min_size=1, max_size=30),
    st.integers(1, 10),
    st.integers(1, 3000),
    st.integers(1, 30),
    st.sampled_from([pa.string(), pa.large_string(), pa.binary(), pa.dictionary(pa.int32(), pa.string())]),
)
def test_parquet_slices_give_all_rows(texts, group_rows, slice_bytes, portion_bytes, kind):
    values = [{"a": [number, None], "b": str(number)} for number in range(len(texts))]
    column = [None if text is None else text.encode() for text in texts] if kind == pa.binary() else texts
    table = pa.table({"text": pa.array(column, pa.string() if pa.types.is_dictionary(kind) else kind), "meta": values})
    if pa.types.is_dictionary(kind):
        table = table.set_column(0, "text", table["text"].dictionary_encode())
    expected = [(text, {"meta": value}) for text, value in zip(texts, values, strict=True) if text is not None]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.parquet")
        pq.write_table(table, path, row_group_size=group_rows)
        rules = TextRules(keep=("meta",), portion_bytes=portion_bytes)
        assert read_all(path, rules, slice_bytes) == (expected, 0, texts.count(None))


@given(TEXT, st.booleans(), st.sampled_from(["", ".gz", ".zst"]))
def test_a_text_file_is_one_document(text, with_bom, ending):
    data = (b"\xef\xbb\xbf" if with_bom else b"") + text.encode()
    compress = {"": bytes, ".gz": gzip.compress, ".zst": lambda data: pa.Codec("zstd").compress(data, asbytes=True)}
    expected = data.decode("utf-8-sig")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"a.txt{ending}")
        path.write_bytes(compress[ending](data))
        for on_error in ("fail", "skip"):
            assert read_all(path, TextRules(on_error=on_error), 1) == ([(expected, {})], 0, 0)
