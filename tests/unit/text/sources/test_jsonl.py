"""JSONL, plain and compressed: the same documents, whatever the line ends, the order of reading, the compression."""

import gzip
import json
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slices import zstd
from tokenfeed.errors import DependencyError, FormatError
from tokenfeed.text.sources import jsonl
from tokenfeed.text.sources.jsonl import JsonlText
from tokenfeed.text.sources.stored import StoredFile

TEXT = st.one_of(st.none(), st.just(""), st.text(st.characters(exclude_categories=["Cs"]), max_size=20))


COMPRESSED = {
    "": lambda data: data,
    ".gz": gzip.compress,
    ".zst": zstd,
    "two.gz": lambda data: gzip.compress(data[: len(data) // 3]) + gzip.compress(data[len(data) // 3 :]),
    "two.zst": lambda data: zstd(data[: len(data) // 3]) + zstd(data[len(data) // 3 :]),
}


def lines_of(texts, *, end=b"\n", key="text", **options) -> bytes:
    return b"".join(json.dumps({"id": 1, key: text}, **options).encode() + end for text in texts)


def write(folder: Path, data: bytes, ending: str = "") -> Path:
    path = folder / f"a.jsonl{ending.removeprefix('two')}"
    path.write_bytes(COMPRESSED[ending](data))
    return path


def jsonl_text(path: Path, column: str) -> JsonlText:
    return JsonlText(StoredFile(str(path)), column)


def texts_of(group, size=100):
    return [text for _, texts in group.batches(size) for text in texts]


@given(
    st.lists(st.tuples(TEXT, st.sampled_from([b"", b"", b"\n", b" \t\r\n"])), max_size=30),
    st.sampled_from([b"\n", b"\r\n"]),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.data(),
)
def test_every_form_gives_the_same_documents(documents, end, ascii_only, with_bom, last_end, data):
    """Groups of 4 here, so that there are many; blank lines anywhere; groups in any order."""
    lines = [blank + lines_of([text], end=end, ensure_ascii=ascii_only) for text, blank in documents]
    content = (b"\xef\xbb\xbf" if with_bom else b"") + b"".join(lines)
    content = content if last_end else content.rstrip()
    texts = [text for text, _ in documents]
    groups = [texts[first : first + 4] for first in range(0, len(texts), 4)]
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(jsonl, "GROUP_ROWS", 4)
        for ending in COMPRESSED:
            text = jsonl_text(write(Path(folder), content, ending), "text")
            for number in data.draw(st.lists(st.integers(0, len(groups) + 1), max_size=8)):
                if number >= len(groups):
                    assert text.read(number) is None
                    continue
                start, size = data.draw(st.integers(0, len(groups[number]))), data.draw(st.integers(1, 5))
                group = text.read(number, start)
                assert group.num_rows == len(groups[number])
                batches = list(group.batches(size))
                assert [one for _, batch in batches for one in batch] == groups[number][start:]
                assert all(first == start or first % size == 0 for first, _ in batches)
                assert all(first // size == (first + len(batch) - 1) // size for first, batch in batches)
            assert text.num_groups() == len(groups)
            assert [texts_of(text.read(number)) for number in range(len(groups))] == groups
            text.close()
            assert text.read(len(groups)) is None


@pytest.fixture
def taken(monkeypatch):
    """The groups that were read."""
    taken, take = [], jsonl._Lines.take_group
    noting = lambda self, *, keep: taken.append(self.group) or take(self, keep=keep)  # noqa: E731
    monkeypatch.setattr(jsonl._Lines, "take_group", noting)
    return taken


@pytest.mark.parametrize("ending", ["", ".gz", ".zst"])
def test_going_forward_reads_everything_once(tmp_path, ending, taken):
    text = jsonl_text(write(tmp_path, lines_of(["x"] * 5000), ending), "text")
    for number in range(6):
        text.read(number)
    assert taken == [0, 1, 2, 3, 4, 5]
    assert text.num_groups() == 5
    assert len(taken) == 6, "the count was learnt on the way"
    text.read(2)
    assert taken[6:] == ([2] if ending == "" else [0, 1, 2]), "only plain files are read from where the group begins"
    text.close()
    text.read(4)
    assert taken[-1] == 4


def test_streams_stay_where_they_stopped(tmp_path, monkeypatch, taken):
    """Two readers at different places of a compressed file do not send each other back to the start."""
    monkeypatch.setattr(jsonl, "GROUP_ROWS", 10)
    text = jsonl_text(write(tmp_path, lines_of(["x"] * 400), ".gz"), "text")
    text.read(20)
    text.read(0)
    del taken[:]
    for step in range(1, 10):
        text.read(20 + step)
        text.read(step)
    assert taken == [place for step in range(1, 10) for place in (20 + step, step)]


@pytest.mark.parametrize("ending", ["", ".gz", ".zst"])
def test_threads_read_at_once(tmp_path, ending, monkeypatch):
    monkeypatch.setattr(jsonl, "GROUP_ROWS", 50)
    texts = [f"text {number}" for number in range(2010)]
    text = jsonl_text(write(tmp_path, lines_of(texts), ending), "text")

    def work(first):
        for turn in range(40):
            number = (first * 13 + turn * (1 + first)) % 41
            assert texts_of(text.read(number)) == texts[number * 50 : number * 50 + 50]

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))
    assert text.num_groups() == 41
    assert len(text._idle) <= 4


@pytest.mark.parametrize(
    ("line", "error", "message"),
    [
        (b'{"text": "a"', FormatError, "is not JSON"),
        (b'{"text": "a"} {"text": "b"}', FormatError, "is not JSON"),
        (b"{'text': 'a'}", FormatError, "is not JSON"),
        (b"[" * 200_000, FormatError, "is not JSON"),
        (b'["text"]', FormatError, "expected a JSON object, got a list"),
        (b"7", FormatError, "got a number"),
        (b'"text"', FormatError, "got a string"),
        (b'{"text": 7}', FormatError, "'text' is a number; expected a string"),
        (b'{"text": ["a"]}', FormatError, "'text' is a list; expected a string"),
        (b'{"text": true}', FormatError, "'text' is true or false"),
        (b'{"body": "a", "id": 1}', FormatError, "there is no 'text'; the keys are body, id"),
        (b"{}", FormatError, "the keys are none"),
        (b'{"text": "\xff"}', FormatError, "is not UTF-8"),
        (b'{"text": "\\ud800"}', FormatError, "an escape is no character"),
        ('{"text": "a"}'.encode("utf-16"), FormatError, "is not UTF-8"),
        (b'\xef\xbb\xbf{"text": "a"}', FormatError, "is not JSON"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, error, message):
    """The good lines before it are read; line numbers count blank lines, rows do not."""
    good = lines_of(["good"] * 1030)
    path = write(tmp_path, b"\n\n" + good + line + b"\n" + good)
    text = jsonl_text(path, "text")
    assert texts_of(text.read(0)) == ["good"] * 1024
    batches = text.read(1).batches(3)
    assert [next(batches), next(batches)] == [(0, ["good"] * 3), (3, ["good"] * 3)]
    with pytest.raises(error, match=rf"a\.jsonl, line 1,033: .*{message}"):
        next(batches)
    assert texts_of(text.read(1, 7)) == ["good"] * 1017


def test_digest_tells_contents_apart_and_not_places(tmp_path):
    content = lines_of([f"text {number}" for number in range(9000)])
    changes = {
        "same": content,
        "first": content.replace(b"text 1", b"text 2", 1),
        "last": content[:-10] + b"?" + content[-9:],
        "longer": content + b"\n",
        "empty": b"",
    }
    for name, data in changes.items():
        (tmp_path / f"{name}.jsonl").write_bytes(data)
    digest = jsonl_text(write(tmp_path, content), "text").digest()
    digests = {name: jsonl_text(tmp_path / f"{name}.jsonl", "text").digest() for name in changes}
    assert digests.pop("same") == digest
    assert digest not in digests.values()
    assert len(set(digests.values())) == 4


def test_compressed_files_without_pyarrow(tmp_path, monkeypatch):
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b'{"text": "a"}'))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DependencyError, match=r"a\.jsonl\.gz: compressed files need pip install 'tokenfeed\[text\]'"):
        JsonlText(StoredFile(str(tmp_path / "a.jsonl.gz")), "text").read(0)
