"""However a file is cut, and however little of it is read at a time: the documents are those of a plain loop."""

import gzip
import json
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tokenfeed.kernels import json_lines, json_strings
from tokenfeed.preparation.documents import Reading, read_slice
from tokenfeed.preparation.inputs import cut, find_inputs
from tokenfeed.preparation.reading_lines import LongLine, Wanted

CHARACTERS = st.characters(exclude_categories=["Cs"])
TEXT = st.one_of(st.text(CHARACTERS, max_size=40), st.sampled_from(["", 'a "b" \\ \n\t', "é😀" * 9, "x" * 200]))
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


def depth(value) -> int:
    """How deep a value is nested; ValueError where that is too deep for us."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    levels = 0 if inner is None else 1 + max(map(depth, inner), default=0)
    if levels > json_lines.MAX_DEPTH:
        raise ValueError("nested too deep")
    return levels


def plain_documents(content: bytes, keep: tuple[str, ...]):
    """(documents, malformed, null) by the plainest way there is."""
    documents, malformed, null = [], 0, 0
    for line in content.removeprefix(b"\xef\xbb\xbf").split(b"\n"):
        if not line or line.isspace():
            continue
        try:
            fields = json.loads(str(line, "utf-8"))
            depth(fields)
        except ValueError:
            malformed += 1
            continue
        if not isinstance(fields, dict):
            malformed += 1
            continue
        text, kept = fields.get("text"), {name: fields.get(name) for name in keep}
        if text is None:
            null += 1
        elif not isinstance(text, str) or not fits_utf8([text, kept]):
            malformed += 1
        else:
            documents.append((text, kept))
    return documents, malformed, null


def joined(chunks):
    """(documents, malformed, null) of chunks, pieces put together."""
    documents, malformed, null, is_open = [], 0, 0, False
    for chunk in chunks:
        assert len(chunk.texts) == len(chunk.begins) == len(chunk.ends) == len(chunk.kept)
        for text, begins, ends, kept in zip(chunk.texts, chunk.begins, chunk.ends, chunk.kept, strict=True):
            assert begins != is_open
            assert begins == (kept is not None)
            if begins:
                documents.append((text, kept))
            else:
                assert text, "only a document can be empty, not a piece of one"
                documents[-1] = (documents[-1][0] + text, documents[-1][1])
            is_open = not ends
        malformed += chunk.num_malformed
        null += chunk.num_null
    assert not is_open
    return documents, malformed, null


def read_all(path: Path, how: Reading, slice_bytes: int):
    (file,) = find_inputs(path)
    chunks, total = [], 0
    for part in cut(0, file, slice_bytes=slice_bytes):
        of_part = list(read_slice(file, part, how))
        reached = [chunk.input_bytes for chunk in of_part]
        assert reached == sorted(reached)
        total += reached[-1]
        chunks += of_part
    assert total == file.size
    return joined(chunks)


def same(left, right) -> bool:
    """Equal, NaN to NaN."""
    return json.dumps(left) == json.dumps(right)


@given(
    contents(),
    st.integers(1, 400),
    st.integers(1, 60),
    st.integers(1, 60),
    st.sampled_from([(), ("meta",), ("meta", "id")]),
    st.booleans(),
)
def test_the_documents_do_not_depend_on_how_the_file_is_cut(content, slice_bytes, chunk_bytes, long_bytes, keep, whole):
    expected = plain_documents(content, keep)
    for long in (long_bytes, 1 << 20):
        how = Reading(keep=keep, on_error="skip", whole=whole, chunk_bytes=chunk_bytes, long_bytes=long)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "a.jsonl")
            path.write_bytes(content)
            assert same(read_all(path, how, slice_bytes), expected)
            path = Path(folder, "a.jsonl.gz")
            path.write_bytes(gzip.compress(content))
            assert same(read_all(path, how, slice_bytes), expected)


@pytest.mark.parametrize("line", ODD_LINES)
@pytest.mark.parametrize("long_bytes", [1, 1 << 20])
def test_odd_lines_are_what_json_says(tmp_path, line, long_bytes):
    """As a short line, as a long one that is fed byte by byte, and both together in one file."""
    content = b'{"text": "first", "meta": 1}\n' + line + b'\n{"text": "last", "meta": 2}'
    (tmp_path / "a.jsonl").write_bytes(content)
    for keep in [(), ("meta",)]:
        for chunk_bytes in (1, 2, 3, 1 << 20) if long_bytes == 1 else (1 << 20,):
            how = Reading(keep=keep, on_error="skip", chunk_bytes=chunk_bytes, long_bytes=long_bytes)
            got, expected = read_all(tmp_path / "a.jsonl", how, 1 << 20), plain_documents(content, keep)
            assert same(got, expected)


@given(lines(), st.lists(st.integers(1, 30), min_size=1, max_size=5))
def test_a_line_may_be_fed_in_any_pieces(line, sizes):
    """What is found does not depend on where it is cut, and is what `json` says."""
    expected = None
    for steps in (sizes, [max(1, len(line))]):
        found = LongLine(Wanted(["text", "meta"]), 7)
        at, turn = 0, 0
        while at < len(line):
            size = steps[turn % len(steps)]
            found.feed(line[at : at + size], final=False)
            at, turn = at + size, turn + 1
        found.feed(b"", final=True)
        found.read = lambda offset, count: line[offset : offset + count]
        outcome = (found.problem is None, found.is_blank, found.place("text"), found.place("meta"))
        if expected is None:
            expected = outcome
        assert outcome[:2] == expected[:2]
        if found.problem is None:
            assert outcome == expected
    if expected[0] and not expected[1]:
        fields = json.loads(line)
        for name in ("text", "meta"):
            place = found.place(name)
            assert (place is None) == (name not in fields)
            if place is not None:
                assert same(found.value(*place), fields[name])


@given(st.text(max_size=60), st.integers(1, 20), st.booleans())
@example("😀" * 5, 3, True)
def test_strings_come_back_from_their_escapes(text, block_bytes, ascii_only):
    """Lone surrogates are refused, wherever the string is cut; all else is what it was."""
    raw = json.dumps(text, ensure_ascii=ascii_only).encode(errors="surrogatepass")
    line = LongLine(Wanted(["text"]), block_bytes)
    line.read = lambda offset, count: raw[offset : offset + count]
    if fits_utf8(text):
        assert "".join(piece for _, piece in line.string(0, len(raw))) == text
    else:
        with pytest.raises(ValueError):
            list(line.string(0, len(raw)))


@given(st.binary(max_size=60), st.integers(0, 60))
def test_unescaping_equals_json(inside, at):
    """Of any bytes that `json` takes for the inside of a string; and it stops nowhere but in front of an escape."""
    inside = inside.replace(b'"', b"\\n").replace(b"\x00", b"\\u00e9\\ud83d\\ude00")
    out = np.empty(max(1, len(inside)), np.uint8)
    stopped, written = json_strings.unescape(np.frombuffer(inside, np.uint8), 0, len(inside), True, out, 0)
    try:
        expected = json.loads(b'"' + inside + b'"', strict=False)
        expected.encode()
    except ValueError:
        if inside.isascii():
            assert stopped < 0
    else:
        assert stopped == len(inside)
        assert out[:written].tobytes().decode() == expected
    at = min(at, len(inside))
    stopped, _ = json_strings.unescape(np.frombuffer(inside, np.uint8), 0, at, False, out, 0)
    assert stopped < 0 or stopped == at or (inside[stopped : stopped + 1] == b"\\" and at - stopped < 12)


@given(
    st.lists(st.one_of(st.none(), TEXT), min_size=1, max_size=30),
    st.integers(1, 10),
    st.integers(1, 3000),
    st.integers(1, 30),
    st.integers(1, 60),
    st.sampled_from([pa.string(), pa.large_string(), pa.binary(), pa.dictionary(pa.int32(), pa.string())]),
    st.booleans(),
)
def test_parquet_slices_give_the_rows_of_the_file(texts, group_rows, slice_bytes, chunk_bytes, long_bytes, kind, whole):
    values = [{"a": [number, None], "b": str(number)} for number in range(len(texts))]
    column = [None if text is None else text.encode() for text in texts] if kind == pa.binary() else texts
    table = pa.table({"text": pa.array(column, pa.string() if pa.types.is_dictionary(kind) else kind), "meta": values})
    if pa.types.is_dictionary(kind):
        table = table.set_column(0, "text", table["text"].dictionary_encode())
    expected = [(text, {"meta": value}) for text, value in zip(texts, values, strict=True) if text is not None]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.parquet")
        pq.write_table(table, path, row_group_size=group_rows)
        how = Reading(keep=("meta",), whole=whole, chunk_bytes=chunk_bytes, long_bytes=long_bytes)
        assert read_all(path, how, slice_bytes) == (expected, 0, texts.count(None))


@given(TEXT, st.integers(1, 30), st.integers(1, 60), st.booleans(), st.booleans(), st.sampled_from(["", ".gz", ".zst"]))
def test_a_text_file_is_one_document(text, chunk_bytes, long_bytes, whole, with_bom, ending):
    data = (b"\xef\xbb\xbf" if with_bom else b"") + text.encode()
    compress = {"": bytes, ".gz": gzip.compress, ".zst": lambda data: pa.Codec("zstd").compress(data, asbytes=True)}
    expected = data.decode("utf-8-sig")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"a.txt{ending}")
        path.write_bytes(compress[ending](data))
        for on_error in ("fail", "skip"):
            how = Reading(on_error=on_error, whole=whole, chunk_bytes=chunk_bytes, long_bytes=long_bytes)
            assert read_all(path, how, 1) == ([(expected, {})], 0, 0)
