"""Inputs that lie elsewhere: the same documents and slices as of local files, from real servers on loopback."""

import gzip
import json
import urllib.parse
from pathlib import Path

import obstore
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from servers import nginx_server, s3_server
from tokenfeed.errors import ArgumentError, CorruptionError, FormatError, NotFoundError
from tokenfeed.preparation.inputs import cut, find_inputs, read_slice
from tokenfeed.text.sources.files import TextFiles
from tokenfeed.text.sources.portions import TextRules

NAMES = ["a.jsonl", "b.jsonl.gz", "c.txt", "d.parquet", "f.arrow", "g.arrow"]


def write_files(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    texts = [f"text {number} \u00e9" * (number % 50) for number in range(400)]
    lines = "".join(json.dumps({"id": number, "text": text}) + "\n" for number, text in enumerate(texts)).encode()
    (folder / "a.jsonl").write_bytes(lines)
    (folder / "b.jsonl.gz").write_bytes(gzip.compress(lines))
    (folder / "c.txt").write_text("".join(texts))
    pq.write_table(pa.table({"id": range(400), "text": texts}), folder / "d.parquet", row_group_size=90)
    (folder / "e.csv").write_bytes(b"no text")
    table = pa.table({"id": range(400), "text": texts})
    zipped = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(folder / "f.arrow", table.schema) as stream:
        stream.write_table(table, max_chunksize=90)
    with pa.ipc.new_file(folder / "g.arrow", table.schema, options=zipped) as file:
        file.write_table(table, max_chunksize=90)


def documents(files):
    found = []
    for number, file in enumerate(files):
        keep = () if file.name.endswith(".txt") else ("id",)
        rules = TextRules(keep=keep, portion_bytes=2000)
        for part in cut(number, file, slice_bytes=20_000):
            found += [(part, portion.texts, portion.kept) for portion in read_slice(file, part, rules)]
    return found


@pytest.fixture
def s3(monkeypatch):
    with s3_server() as server:
        server.use(monkeypatch)
        yield server


def test_s3_gives_what_local_files_give(tmp_path, s3):
    write_files(tmp_path / "local")
    s3.put(tmp_path / "local", under="data")
    local = find_inputs(tmp_path / "local" / "*")
    for source in ("s3://bucket/data/*", [f"s3://bucket/data/{name}" for name in NAMES]):
        remote = find_inputs(source)
        assert [(file.name, file.size) for file in remote] == [(file.name, file.size) for file in local]
        assert documents(remote) == documents(local)
        streamed, here = TextFiles.find(source), TextFiles.find(tmp_path / "local" / "*")
        assert streamed.names == here.names
        assert list(streamed.documents()) == list(here.documents())
        assert streamed.digest(0) == remote[0].digest
        assert [text for _, texts in streamed.read(3, 2, 5).batches(64) for text in texts] == [
            text for _, texts in here.read(3, 2, 5).batches(64) for text in texts
        ]
        streamed.close()
    assert TextFiles.find("s3://bucket/data/*.jsonl*", split="train", val="last").names == ("a.jsonl",)
    assert [file.digest for file in find_inputs("s3://bucket/data/*")] == [file.digest for file in remote]
    with pytest.raises(NotFoundError, match="matches no file ending in"):
        find_inputs("s3://bucket/data/*.zst")
    with pytest.raises(ArgumentError, match="holds Parquet or JSONL files and also plain text"):
        find_inputs("s3://bucket/data")
    with pytest.raises(NotFoundError, match=r"s3://bucket/data/none\.jsonl"):
        find_inputs("s3://bucket/data/none.jsonl")


@pytest.mark.parametrize("name", NAMES)
def test_an_object_that_is_replaced_is_noticed(tmp_path, s3, name):
    write_files(tmp_path)
    s3.put(tmp_path, under="data")
    (file,) = find_inputs(f"s3://bucket/data/{name}")
    part = cut(0, file)[0]
    obstore.put(s3.bucket(), f"data/{name}", (tmp_path / name).read_bytes()[:-1] + b"x")
    with pytest.raises(CorruptionError, match="has changed since it was found"):
        list(read_slice(file, part, TextRules()))


def test_http_gives_what_local_files_give_and_tells_no_secret(tmp_path):
    write_files(tmp_path / "www")
    local = find_inputs(tmp_path / "www" / "*")
    with nginx_server(tmp_path / "www", tmp_path / "nginx") as url:
        parts = urllib.parse.urlsplit(url)
        secret = f"{parts.scheme}://user:SECRET@{parts.netloc}{parts.path.rstrip('/')}"
        remote = find_inputs([f"{secret}/{name}?signature=SECRET" for name in NAMES])
        assert [file.name for file in remote] == NAMES
        assert documents(remote) == documents(local)
        assert "SECRET" not in repr(remote)
        (tmp_path / "www" / "a.jsonl").write_bytes(b'{"text": 1}\n')
        (bad,) = find_inputs(f"{secret}/a.jsonl?signature=SECRET")
        for kind, file in ((CorruptionError, remote[0]), (FormatError, bad)):
            with pytest.raises(kind, match=r"http://.*/a\.jsonl") as caught:
                list(read_slice(file, cut(0, file)[0], TextRules()))
            assert "SECRET" not in str(caught.value)
    with pytest.raises(ArgumentError, match="must end in"):
        find_inputs(url)
