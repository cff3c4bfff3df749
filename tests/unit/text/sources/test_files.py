"""Lists of files: what is found, in which order, under which names; and reading them as one."""

import gzip
import json
import os
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clock import Clock
from slices import strings
from tokenfeed.errors import ArgumentError, FormatError, NotFoundError, ReadError
from tokenfeed.preparation.inputs import find_inputs
from tokenfeed.text.sources import files as files_module
from tokenfeed.text.sources import jsonl
from tokenfeed.text.sources.files import TextFiles
from tokenfeed.text.sources.finding import Listing, write_listing


def write(path: Path, groups) -> Path:
    """A file of the format that its name says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        with pq.ParquetWriter(path, pa.schema({"text": pa.string()})) as writer:
            for texts in groups:
                writer.write_table(pa.table({"text": pa.array(texts, pa.string())}), row_group_size=len(texts))
        return path
    data = b"".join(json.dumps({"text": text}).encode() + b"\n" for texts in groups for text in texts)
    if path.suffix == ".gz":
        data = gzip.compress(data)
    elif path.suffix == ".zst":
        data = pa.Codec("zstd").compress(data, asbytes=True)
    path.write_bytes(data)
    return path


def everything(files: TextFiles, size: int = 100):
    """All texts by file, row group and row."""
    read = []
    for file in range(len(files)):
        read.append([])
        while (group := files.read(file, len(read[-1]))) is not None:
            read[-1].append([text for _, texts in strings(group, size) for text in texts])
    return read


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three files, and much that is none of ours."""
    folder = tmp_path / "data"
    for number, name in enumerate(["b.parquet", "a.jsonl", "c.jsonl.zst"]):
        write(folder / name, [[f"{number}"]])
    for name in ["d.parquet.tmp", "d.parquet.tmp.json", ".e.parquet", "notes.csv", "README.md", "x.json", "parquet"]:
        (folder / name).write_bytes(b"?")
    (folder / "sub.parquet").mkdir()
    write(folder / "sub.parquet" / "f.parquet", [["sub"]])
    return folder


def test_a_folder_is_its_known_files_by_name(folder):
    files = TextFiles.find(folder)
    assert files.names == ("a.jsonl", "b.parquet", "c.jsonl.zst")
    assert files.paths == tuple(str(folder / name) for name in files.names)
    assert files.text_column == "text"
    assert len(files) == 3
    assert everything(files) == [[["1"]], [["0"]], [["2"]]]
    assert "3 files, a.jsonl to c.jsonl.zst" in repr(files)


def test_patterns_paths_and_lists(folder, monkeypatch):
    assert TextFiles.find(str(folder / "*.parquet")).names == ("b.parquet",)
    assert TextFiles.find(f"{folder}/*").names == ("a.jsonl", "b.parquet", "c.jsonl.zst")
    assert TextFiles.find(f"{folder}/**/*.parquet").names == ("b.parquet", "sub.parquet/f.parquet")
    assert TextFiles.find(folder / "b.parquet").names == ("b.parquet",)
    mixed = TextFiles.find([folder / "sub.parquet", f"{folder}/[bc].*", str(folder / "a.jsonl")])
    assert mixed.names == ("sub.parquet/f.parquet", "b.parquet", "c.jsonl.zst", "a.jsonl")
    monkeypatch.chdir(folder.parent)
    assert TextFiles.find("data").names == TextFiles.find(folder).names
    assert TextFiles.find(["data/b.parquet", "./data/a.jsonl"]).names == ("b.parquet", "a.jsonl")


def test_a_file_whose_name_looks_like_a_pattern(tmp_path):
    path = write(tmp_path / "a[1].parquet", [["one"]])
    write(tmp_path / "a1.parquet", [["other"]])
    assert everything(TextFiles.find(path)) == [[["one"]]]


@pytest.mark.parametrize(
    "name", [".jsonl", ".jsonl.gz", ".jsonl.zst", ".ndjson", ".ndjson.gz", ".json.gz", ".json.zst"]
)
def test_endings_of_jsonl(tmp_path, name):
    assert everything(TextFiles.find(write(tmp_path / f"a{name}", [["one", "two"]]))) == [[["one", "two"]]]


def test_names_do_not_depend_on_the_place_or_the_split(folder, tmp_path):
    here = TextFiles.find([folder, folder / "sub.parquet"])
    moved = tmp_path / "elsewhere"
    folder.rename(moved)
    assert TextFiles.find([moved, moved / "sub.parquet"]).names == here.names
    val = TextFiles.find([moved, moved / "sub.parquet"], split="val", val="last")
    assert val.names == here.names[-1:]
    assert val.digest(0) == TextFiles.find([moved, moved / "sub.parquet"]).digest(3)


def test_a_listing_fixes_order_and_split(folder):
    write_listing(folder, Listing(train=("c.jsonl.zst", "later.parquet", "a.jsonl"), val=("b.parquet",)))
    files = TextFiles.find(folder)
    assert files.names == ("c.jsonl.zst", "later.parquet", "a.jsonl", "b.parquet")
    assert TextFiles.find(folder, split="train").names == files.names[:3]
    assert TextFiles.find(folder, split="val").names == files.names[3:]
    both = TextFiles.find([folder, folder / "sub.parquet"], split="val")
    assert both.names == ("b.parquet",), "only listings say what is val, where there is one"
    write_listing(folder, Listing(train=(), val=()))
    with pytest.raises(NotFoundError, match="lists no file"):
        TextFiles.find(folder)
    (folder / "files.json").write_text("{}")
    with pytest.raises(FormatError, match=r"files\.json"):
        TextFiles.find(folder)


@pytest.mark.parametrize(
    "spelling", ["{0}", "{0}/b.parquet", "{0}/../{1}/b.parquet", "{0}/b.*", "file://{0}/b.parquet"]
)
@pytest.mark.parametrize("read", [TextFiles.find, find_inputs], ids=["stream", "prepare"])
def test_a_file_that_is_given_twice_is_refused_however_it_is_spelled(folder, read, spelling, monkeypatch):
    given = spelling.format(folder, folder.name)
    for other in (given, f"{folder}/b.parquet"):
        with pytest.raises(ArgumentError, match=r"\w\.\w+ is given twice"):
            read([given, other])
    monkeypatch.chdir(folder)
    with pytest.raises(ArgumentError, match=r"b\.parquet is given twice, also as b\.parquet: its documents"):
        read(["b.parquet", folder / "b.parquet"])
    (folder / "z.parquet").symlink_to(folder / "b.parquet")
    with pytest.raises(ArgumentError, match=r"z\.parquet is given twice, also as .*b\.parquet"):
        read(folder)


def test_numbers_out_of_range(folder):
    files = TextFiles.find(folder)
    assert files.read(1, 1) is None
    assert list(strings(files.read(1, 0, 1), 3)) == []
    for bad in [(3, 0), (-1, 0), (0, -1), (0, 0, -1), (0, 0, 2), (1, 0, 2)]:
        with pytest.raises(ArgumentError):
            files.read(*bad)
    with pytest.raises(ArgumentError, match="wait_seconds"):
        TextFiles.find(folder, wait_seconds=-1)
    for start, step in [(-1, 1), (0, 0)]:
        with pytest.raises(ArgumentError, match="start is"):
            next(files.iter_row_groups(start=start, step=step))


TEXT = st.one_of(st.none(), st.just(""), st.text(st.characters(exclude_categories=["Cs"]), max_size=8))
ENDING = st.sampled_from(["parquet", "jsonl", "jsonl.gz", "jsonl.zst"])
FILES = st.lists(
    st.tuples(ENDING, st.lists(st.lists(TEXT, min_size=1, max_size=9), max_size=6)), min_size=1, max_size=5
)


def write_all(folder: Path, files):
    """The row groups by file, as they are on disk: JSONL has groups of 4 here."""
    expected = []
    for number, (ending, groups) in enumerate(files):
        write(folder / f"{number}.{ending}", groups)
        if ending != "parquet":
            texts = [text for group in groups for text in group]
            groups = [texts[first : first + 4] for first in range(0, len(texts), 4)]
        expected.append(groups)
    return expected


@given(FILES, st.integers(1, 6), st.integers(1, 10), st.data())
def test_reading_is_slicing(files, step, size, data):
    """Any row of any group, at any batch size; and shards of row groups: each is read by just one."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(jsonl, "GROUP_ROWS", 4)
        patch.setattr(files_module, "_MAX_OPEN", 2)
        expected = write_all(Path(folder), files)
        found = TextFiles.find(folder)
        flat = [group for groups in expected for group in groups]
        places = [(file, group) for file, groups in enumerate(expected) for group in range(len(groups))]
        for file, group in data.draw(st.lists(st.sampled_from(places), max_size=8)) if places else []:
            texts = expected[file][group]
            start = data.draw(st.integers(0, len(texts)))
            batches = list(strings(found.read(file, group, start), size))
            assert [text for _, batch in batches for text in batch] == texts[start:]
            firsts = [first for first, _ in batches]
            aligned = [first for first in range(0, len(texts), size) if first > start]
            assert firsts == ([start, *aligned] if start < len(texts) else [])
        assert everything(found, size) == expected
        flat = [[text for text in group if text is not None] for group in flat]
        shards = [list(found.iter_row_groups(start=start, step=step)) for start in range(step)]
        assert shards == [flat[start::step] for start in range(step)]
        beyond = data.draw(st.integers(0, len(flat) + 3))
        assert list(found.iter_row_groups(start=beyond, step=step)) == flat[beyond::step]
        assert [found.num_groups(file) for file in range(len(found))] == [len(groups) for groups in expected]
        assert len(found._recent) <= 2
        found.close()


def open_descriptors_of(folder: Path) -> int:
    count = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            count += str(Path(f"/proc/self/fd/{name}").readlink()).startswith(str(folder))
        except FileNotFoundError:
            continue
    return count


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_at_most_16_files_stay_open(tmp_path):
    for number in range(40):
        write(tmp_path / f"{number:02}.{['parquet', 'jsonl', 'jsonl.gz'][number % 3]}", [[str(number)]])
    files = TextFiles.find(tmp_path)
    assert open_descriptors_of(tmp_path) == 0
    under_way = strings(files.read(0, 0), 1)
    assert everything(files) == [[[str(number)]] for number in range(40)]
    assert open_descriptors_of(tmp_path) <= 17
    assert list(under_way) == [(0, ["0"])], "what is in use is not closed"
    assert open_descriptors_of(tmp_path) <= 16
    files.close()
    assert open_descriptors_of(tmp_path) == 0
    with pytest.raises(ReadError, match="have been closed"):
        files.read(0, 0)


@pytest.mark.parametrize("count", [1, 20])
def test_threads_share_the_files(tmp_path, count):
    expected = []
    for number in range(count):
        groups = [[f"{number} {group} {row}" for row in range(30)] for group in range(3)]
        write(tmp_path / f"{number:02}.parquet", groups)
        expected.append(groups)
    files = TextFiles.find(tmp_path)

    def work(first):
        for turn in range(60):
            file, group = (first * 7 + turn * 3) % count, (first + turn) % 3
            texts = [text for _, texts in strings(files.read(file, group), 1 + 7 * first) for text in texts]
            assert texts == expected[file][group]

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))


def test_a_file_that_arrives_is_waited_for(tmp_path, monkeypatch):
    """1 s without progress would be too long; the growing part keeps the reader waiting for longer than that."""
    clock = Clock()
    monkeypatch.setattr("tokenfeed.text.sources.files.time", clock.module("monotonic"))
    write(tmp_path / "a.parquet", [["a"]])
    write_listing(tmp_path, Listing(train=("a.parquet", "b.parquet"), val=("c.parquet",)))
    content = write(tmp_path / "other" / "b.parquet", [["b"]]).read_bytes()
    files = TextFiles.find(tmp_path, split="train", wait_seconds=1.0)

    def download():
        part = tmp_path / "b.parquet.tmp"
        for end in range(1, 5):
            part.write_bytes(content[: end * len(content) // 4])
            looks = clock.looks
            while clock.looks < looks + 4:  # until the reader has seen it
                time.sleep(0.001)
            clock.advance(0.9)
        part.replace(tmp_path / "b.parquet")

    thread = threading.Thread(target=download)
    thread.start()
    assert list(files.iter_row_groups()) == [["a"], ["b"]]
    thread.join()
    assert clock.now == pytest.approx(3.6)


def test_a_file_that_does_not_arrive(tmp_path, monkeypatch):
    write_listing(tmp_path, Listing(train=("a.parquet",), val=("b.parquet",)))
    (tmp_path / "a.parquet.tmp").write_bytes(b"stale")
    message = r"a\.parquet is listed in .*files\.json and has not arrived.* Run `tokenfeed download` again"
    for wait_seconds in (0.0, 0.5):
        files = TextFiles.find(tmp_path, wait_seconds=wait_seconds)
        clock = Clock(tick=0.1)
        monkeypatch.setattr("tokenfeed.text.sources.files.time", clock.module("monotonic"))
        with pytest.raises(NotFoundError, match=message):
            files.read(0, 0)
        assert wait_seconds <= clock.now <= wait_seconds + 0.4
    for ask in (files.num_groups, files.digest):
        with pytest.raises(NotFoundError, match=message):
            ask(0)


def test_closing_ends_the_waiting(tmp_path):
    write_listing(tmp_path, Listing(train=("a.parquet",), val=("b.parquet",)))
    files = TextFiles.find(tmp_path, wait_seconds=60)
    timer = threading.Timer(0.2, files.close)
    timer.start()
    with pytest.raises(ReadError, match="closed before it arrived"):
        files.read(0, 0)
    timer.join()


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("a.ds", r"a\.ds holds tokens already: open it with tokenfeed\.open"),
        ("chunk-0-0.bin", r"chunk-0-0\.bin holds tokens already: open it with tokenfeed\.open"),
        ("shard.00000.mds", r"is read by its own package: .*docs/guides/other-readers\.md"),
        ("a.tar.gz", r"is read by its own package: give the dataset of that to prepare, with tokens_column="),
        ("a.lance", r"is read by its own package: .*docs/guides/other-readers\.md"),
        ("manifest.json", "says that it is a store: open it with tokenfeed.open"),
        ("a.json", "must be one object a line"),
    ],
)
def test_files_of_others_are_named_with_what_to_do(tmp_path, name, told):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / name).write_bytes(b"x")
    (folder / "index.json").write_text("{}")
    for source in (folder, f"{folder}/*", folder / name):
        with pytest.raises((NotFoundError, ArgumentError), match=told):
            TextFiles.find(source)
    with pytest.raises(NotFoundError, match=r"no file ending in .* A pattern reads the folders inside it: .*/\*\*/"):
        TextFiles.find(tmp_path)


@pytest.mark.parametrize("source", [None, 5, [{"text": "a"}, "b"], [None]])
def test_what_is_no_path(source):
    with pytest.raises(ArgumentError, match=r"(is no path|holds no text): give a file, a folder, a pattern"):
        TextFiles.find(source)
