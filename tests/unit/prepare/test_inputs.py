"""Finding files, cutting them, and reading slices: what is refused, what is left out and counted, what is noticed."""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tiers import slow
from tokenfeed.errors import ArgumentError, CorruptionError, FormatError, MissingError, NotAStoreError, ReadError
from tokenfeed.preparation.documents import Chunk, Reading, read_slice
from tokenfeed.preparation.inputs import Slice, cut, find_inputs


def zstd(data: bytes) -> bytes:
    return pa.Codec("zstd").compress(data, asbytes=True)


def lines_of(*documents: object) -> bytes:
    return b"".join(json.dumps(document).encode() + b"\n" for document in documents)


def read(path: Path, how: Reading | None = None, slice_bytes: int = 1 << 26) -> list[Chunk]:
    (file,) = find_inputs(path)
    parts = cut(0, file, slice_bytes=slice_bytes)
    return [chunk for part in parts for chunk in read_slice(file, part, how or Reading())]


def texts(chunks: list[Chunk]) -> list[str]:
    assert all(all(chunk.begins) and all(chunk.ends) for chunk in chunks)
    return [text for chunk in chunks for text in chunk.texts]


def test_inputs_are_found_in_order_with_their_names(tmp_path):
    (tmp_path / "sub").mkdir()
    for name in ("b.txt", "a.jsonl", "c.parquet", "sub/a.jsonl.gz", "d.json", ".hidden.txt", "e.csv"):
        data = lines_of({"text": "x"})
        (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    pq.write_table(pa.table({"text": ["x"]}), tmp_path / "c.parquet")
    assert [file.name for file in find_inputs(tmp_path)] == ["a.jsonl", "b.txt", "c.parquet"]
    found = find_inputs([tmp_path / "sub", tmp_path / "*.jsonl"])
    assert [file.name for file in found] == ["sub/a.jsonl.gz", "a.jsonl"]
    assert found[1].size == (tmp_path / "a.jsonl").stat().st_size
    assert [file.name for file in find_inputs(tmp_path, split="train")] == ["a.jsonl", "b.txt"]
    assert [file.name for file in find_inputs(tmp_path, split="val")] == ["c.parquet"]
    assert find_inputs(f"file://{tmp_path}/a.jsonl")[0].digest == found[1].digest
    assert str(tmp_path) not in repr(found)


def test_a_digest_is_of_the_content_alone(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.jsonl").write_bytes(lines_of({"text": "x"}))
    (tmp_path / "x.jsonl").write_bytes(lines_of({"text": "y"}))
    one, two, other = find_inputs([tmp_path / "a", tmp_path / "b", tmp_path / "x.jsonl"])
    assert one.digest == two.digest != other.digest
    assert len(one.digest) == 16


@pytest.mark.parametrize(
    ("sources", "kind", "message"),
    [
        ([], ArgumentError, "empty list"),
        ("{}/none.jsonl", NotAStoreError, "no file or folder"),
        ("{}/*.parquet", NotAStoreError, "matches no file ending in .parquet"),
        ("{}/a.csv", ArgumentError, "must end in .parquet"),
        (["{}/a.jsonl", "{}/../{}/a.jsonl"], ArgumentError, "twice"),
        (["{}/a.jsonl", "s3://b/a.jsonl"], ArgumentError, "together"),
        (
            ["https://h/a.jsonl?x=SECRET", "https://u:SECRET@h/a.jsonl"],
            ArgumentError,
            "https://h/a.jsonl is there twice",
        ),
        ("https://user:SECRET@h/a.csv?sig=SECRET", ArgumentError, "https://h/a.csv cannot be read as text"),
        ("ftp://h/a.jsonl", ArgumentError, "known are s3://"),
    ],
)
def test_sources_that_cannot_be_meant(tmp_path, sources, kind, message):
    (tmp_path / "a.jsonl").write_bytes(b"")
    (tmp_path / "a.csv").write_bytes(b"")

    def fill(source: str) -> str:
        return source.replace("{}/../{}", f"{tmp_path}/../{tmp_path.name}").replace("{}", str(tmp_path))

    with pytest.raises(kind, match=message) as caught:
        find_inputs(fill(sources) if isinstance(sources, str) else [fill(source) for source in sources])
    assert "SECRET" not in str(caught.value)


def test_plain_jsonl_is_cut_into_equal_parts(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"x" * 100)
    (file,) = find_inputs(path)
    assert cut(7, file, slice_bytes=40) == [Slice(7, 0, 0, 33), Slice(7, 1, 33, 66), Slice(7, 2, 66, 100)]
    assert cut(7, file, slice_bytes=100) == [Slice(7, 0, 0, 100)]
    assert len(cut(7, file, slice_bytes=1)) == 100
    with pytest.raises(ArgumentError, match="at least 1"):
        cut(7, file, slice_bytes=0)
    path.write_bytes(b"")
    assert cut(0, find_inputs(path)[0]) == []
    for name in ("a.jsonl.gz", "a.txt"):
        (tmp_path / name).write_bytes(gzip.compress(b"x" * 100))
        (file,) = find_inputs(tmp_path / name)
        assert cut(0, file, slice_bytes=1) == [Slice(0, 0, 0, file.size)]


def test_parquet_is_cut_between_row_groups(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["x" * 100] * 10}), path, row_group_size=2, use_dictionary=False)
    (file,) = find_inputs(path)
    size = pq.read_metadata(path).row_group(0).total_byte_size
    assert [(part.start, part.stop) for part in cut(0, file, slice_bytes=2 * size)] == [(0, 2), (2, 4), (4, 5)]
    assert [part.stop for part in cut(0, file, slice_bytes=1)] == [1, 2, 3, 4, 5]
    assert len(cut(0, file)) == 1
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), path)
    assert texts(read(path)) == []


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (b'{"text": "a"', "not JSON"),
        (b'{"text": "\xff"}', "not UTF-8"),
        (b'{"text": "\\ud800"}', "an escape"),
        (b'["a"]', "expected a JSON object"),
        (b'{"text": 7}', "'text' is"),
    ],
)
@pytest.mark.parametrize("long_bytes", [1, 1 << 20])
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_a_malformed_line_is_named_or_left_out(tmp_path, line, what, long_bytes, ending):
    path = tmp_path / f"a.jsonl{ending}"
    before, after = lines_of({"text": "a"}), lines_of({"text": "b"})
    content = before + b"\n" + line + b"\n" + after
    path.write_bytes(gzip.compress(content) if ending else content)
    how = {"chunk_bytes": 10, "long_bytes": long_bytes}
    with pytest.raises(CorruptionError, match=what) as caught:
        read(path, Reading(**how))
    assert f"{path}, line 3, from byte {len(before) + 1}" in str(caught.value)
    chunks = read(path, Reading(**how, on_error="skip", whole=True))
    assert texts(chunks) == ["a", "b"]
    (problem,) = [problem for chunk in chunks for problem in chunk.skipped]
    assert problem.where.startswith(f"{path}, line 3, from byte {len(before) + 1}")
    assert what in problem.what
    assert sum(chunk.num_malformed for chunk in chunks) == 1


def test_problems_in_a_later_slice_are_named_by_their_byte(tmp_path):
    path = tmp_path / "a.jsonl"
    good = lines_of({"text": "a" * 50})
    path.write_bytes(good * 5 + b"bad\n" + good)
    with pytest.raises(CorruptionError, match=f"a.jsonl, from byte {len(good) * 5}: the line is not JSON"):
        read(path, slice_bytes=100)


def test_of_many_problems_ten_are_told_and_all_are_counted(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(lines_of({"text": "a"}) + b"bad\n" * 3000 + lines_of({"text": None}, {"id": 1}) * 50)
    chunks = read(path, Reading(on_error="skip", chunk_bytes=1000))
    assert sum(chunk.num_malformed for chunk in chunks) == 3000
    assert sum(chunk.num_null for chunk in chunks) == 100
    assert sum(len(chunk.skipped) for chunk in chunks) == 10
    assert texts(chunks) == ["a"]


@pytest.mark.parametrize("ending", ["jsonl", "jsonl.zst"])
@pytest.mark.parametrize("long_bytes", [1, 1 << 20])
def test_a_key_that_no_line_has_is_an_error_and_one_that_some_lack_is_not(tmp_path, ending, long_bytes):
    path = tmp_path / f"a.{ending}"
    compress = zstd if ending.endswith("zst") else bytes
    how = {"chunk_bytes": 10, "long_bytes": long_bytes}
    path.write_bytes(compress(lines_of({"body": "a", "id": 1}, {"body": "b", "id": 2})))
    with pytest.raises(MissingError, match=r"none of the first .* lines has 'text'.*text_column="):
        read(path, Reading(**how, on_error="skip"))
    if long_bytes > 1:
        with pytest.raises(MissingError, match="the keys of the first are body, id"):
            read(path, Reading(**how), slice_bytes=1)
        with pytest.raises(MissingError, match=r"has 'url'.*keep="):
            read(path, Reading("body", ("url",), **how))
    path.write_bytes(compress(lines_of({"body": "a", "id": 1}, {"id": 2}, {"body": "c", "url": None}, {"body": None})))
    chunks = read(path, Reading("body", ("id", "url"), whole=True, **how), slice_bytes=1)
    assert texts(chunks) == ["a", "c"]
    assert [kept for chunk in chunks for kept in chunk.kept] == [{"id": 1, "url": None}, {"id": None, "url": None}]
    assert sum(chunk.num_null for chunk in chunks) == 2


def test_a_key_is_found_however_it_is_written(tmp_path):
    path = tmp_path / "a.jsonl"
    key = "the text of the page, \u00e9"
    spellings = [json.dumps(key), json.dumps(key, ensure_ascii=False), "".join(f"\\u{ord(c):04x}" for c in key)]
    spellings[2] = f'"{spellings[2]}"'
    near = json.dumps(key + "x")
    path.write_text("".join(f'{{{near}: 1, {name}: "{n}"}}\n' for n, name in enumerate(spellings)))
    for long_bytes in (1, 1 << 20):
        assert texts(read(path, Reading(key, whole=True, chunk_bytes=9, long_bytes=long_bytes))) == ["0", "1", "2"]


def test_a_kept_value_has_a_limit(tmp_path):
    """However long the line is, and however it is read."""
    path = tmp_path / "a.jsonl"
    longest = 4 << 20
    for meta, fits in ((b'"%s"' % (b"c" * (longest - 2)), True), (b'"%s"' % (b"\\u0041" * 699_051), False)):
        path.write_bytes(b'{"text": "a", "meta": %s}\n{"text": "b", "meta": 1}' % meta)
        for long_bytes in (1000, 16 << 20):
            how = Reading(keep=("meta",), on_error="skip", whole=True, long_bytes=long_bytes)
            assert texts(read(path, how)) == (["a", "b"] if fits else ["b"])
            if not fits:
                with pytest.raises(CorruptionError, match="'meta' has 4,194,308 bytes; at most 4,194,304"):
                    read(path, Reading(keep=("meta",), long_bytes=long_bytes))


@pytest.mark.parametrize("ending", ["jsonl.gz", "jsonl.zst", "txt.gz", "txt.zst"])
def test_damaged_compression_is_an_error_in_both_modes(tmp_path, ending):
    path = tmp_path / f"a.{ending}"
    data = lines_of(*({"text": os.urandom(40).hex()} for _ in range(2000)))
    good = gzip.compress(data) if ending.endswith("gz") else zstd(data)
    for damaged in (good[: len(good) // 2], good[:-20], b"nonsense" * 9, b""):
        path.write_bytes(damaged)
        with pytest.raises((CorruptionError, ReadError)) as caught:
            read(path, Reading(on_error="skip"))
        assert str(path) in str(caught.value)


def test_damaged_parquet_is_an_error(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": [os.urandom(500).hex() for _ in range(2000)]}), path, use_dictionary=False)
    good = path.read_bytes()
    (file,) = find_inputs(path)
    path.write_bytes(good[:5000] + os.urandom(2000) + good[7000:])
    with pytest.raises((CorruptionError, ReadError), match=r"a\.parquet"):
        list(read_slice(file, cut(0, file)[0], Reading(on_error="skip")))
    path.write_bytes(good[:-100])
    with pytest.raises(FormatError, match="cut short"):
        find_inputs(path)


@pytest.mark.parametrize("name", ["a.jsonl", "a.txt", "a.parquet"])
def test_a_file_that_changes_is_noticed(tmp_path, name):
    path = tmp_path / name

    def write(text: str) -> None:
        if name == "a.parquet":
            pq.write_table(pa.table({"text": [text] * 5000}), path, use_dictionary=False)
        else:
            path.write_bytes(lines_of({"text": text}) * 5000)

    write("one")
    (file,) = find_inputs(path)
    (part,) = cut(0, file)
    write("two")
    with pytest.raises(CorruptionError, match="has changed since it was found"):
        list(read_slice(file, part, Reading()))
    write("one")
    chunks = read_slice(file, part, Reading(chunk_bytes=1000, long_bytes=1000))
    next(chunks)
    os.utime(path, ns=(1, 1))
    with pytest.raises(CorruptionError, match="was changed while it was being read"):
        list(chunks)
    path.unlink()
    with pytest.raises(NotAStoreError, match="there is no file"):
        list(read_slice(file, part, Reading()))


def test_parquet_rows_without_text_are_left_out(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": pa.array([b"a", None, b"\xff", b"d"]), "id": [1, 2, 3, 4]}), path)
    with pytest.raises(CorruptionError, match="row group 0, row 2: 'text' is not UTF-8"):
        read(path)
    for long_bytes in (1, 100):
        how = Reading(keep=("id",), on_error="skip", long_bytes=long_bytes)
        chunks = read(path, how)
        assert texts(chunks) == ["a", "d"]
        assert [kept for chunk in chunks for kept in chunk.kept] == [{"id": 1}, {"id": 4}]
        assert (sum(chunk.num_malformed for chunk in chunks), sum(chunk.num_null for chunk in chunks)) == (1, 1)
    with pytest.raises(MissingError, match="its columns are text, id"):
        read(path, Reading("body"))
    with pytest.raises(MissingError, match=r"no column 'url'.*keep="):
        read(path, Reading(keep=("url",)))


def test_what_parquet_columns_become_in_json(tmp_path):
    import datetime
    import decimal

    path = tmp_path / "a.parquet"
    table = pa.table(
        {
            "text": ["a"],
            "time": pa.array([1_700_000_000_123_456_789], pa.timestamp("ns")),
            "day": [datetime.date(2024, 5, 1)],
            "price": [decimal.Decimal("1.50")],
            "map": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())),
            "list": [[{"x": [None, 1.5]}]],
            "blob": [b"\xff"],
            "times": pa.array([[1]], pa.list_(pa.timestamp("s"))),
        }
    )
    pq.write_table(table, path)
    chunks = read(path, Reading(keep=("time", "day", "price", "map", "list")))
    kept = chunks[0].kept[0]
    assert json.loads(json.dumps(kept)) == {
        "time": "2023-11-14 22:13:20.123456789",
        "day": "2024-05-01",
        "price": "1.50",
        "map": [["a", 1]],
        "list": [{"x": [None, 1.5]}],
    }
    for name in ("blob", "times"):
        with pytest.raises(FormatError, match=f"{name!r} is .*, which JSON cannot hold"):
            read(path, Reading(keep=(name,)))


def test_a_text_file_that_is_not_utf8(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"a" * 5000 + b"\xff")
    with pytest.raises(CorruptionError, match=r"a\.txt: it is not UTF-8"):
        read(path, Reading(chunk_bytes=100, long_bytes=100))
    chunks = read(path, Reading(on_error="skip", chunk_bytes=100, long_bytes=100))
    assert texts(chunks) == []
    assert sum(chunk.num_malformed for chunk in chunks) == 1


def test_readings_that_cannot_be_meant():
    with pytest.raises(ArgumentError, match="'fail' or 'skip'"):
        Reading(on_error="ignore")
    with pytest.raises(ArgumentError, match="at least 1"):
        Reading(chunk_bytes=0)
    for keep in (("text",), ("a", "a")):
        with pytest.raises(ArgumentError, match="twice, or is the text column 'text'"):
            Reading(keep=keep)


MEMORY = """
import resource, sys
from pathlib import Path
from tokenfeed.preparation.documents import Reading, read_slice
from tokenfeed.preparation.inputs import cut, find_inputs

def read(path):
    (file,) = find_inputs(path)
    parts = cut(0, file)
    chunks = (chunk for part in parts for chunk in read_slice(file, part, Reading(on_error="skip")))
    return sum(len(text) for chunk in chunks for text in chunk.texts)

warm, path = sys.argv[1:]
read(warm)
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
before = peak()
print(read(path), (peak() - before) >> 20)
"""


@pytest.mark.parametrize(
    "name", ["one.txt.gz", "many.jsonl", *slow("one.txt", "one.jsonl", "one.jsonl.zst", "many.parquet")]
)
def test_memory_does_not_grow_with_the_file(tmp_path, name):
    """64 MB of text, in one document or in many: at most 40 MB more than a small file needs (one string: 250 MB)."""
    text = "Some text, \u00e9 and \U0001f600.\n" * (2 << 20)
    data = text.encode() if ".txt" in name else lines_of({"id": 1, "text": text})
    if name.startswith("many"):
        data = lines_of({"id": 1, "text": text[:5000]}) * (len(text) // 5000)
    small = data[:1000] if ".txt" in name else lines_of({"text": "a" * 5000}) * 2000
    for path, content in ((tmp_path / name, data), (tmp_path / f"small_{name}", small)):
        if name.endswith("parquet"):
            documents = [text[:5000]] * (len(text) // 5000 if content is data else 100)
            pq.write_table(pa.table({"text": documents}), path, use_dictionary=False)
            continue
        path.write_bytes(
            gzip.compress(content, 1) if name.endswith("gz") else zstd(content) if name.endswith("zst") else content
        )
    command = [sys.executable, "-c", MEMORY, str(tmp_path / f"small_{name}"), str(tmp_path / name)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    characters, megabytes = map(int, done.stdout.split())
    assert characters == (len(text) // 5000 * 5000 if name.startswith("many") else len(text))
    assert megabytes <= 40
