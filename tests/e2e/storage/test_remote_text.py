"""Streams of text that lies on servers: what is fetched, exact resume, servers that fail, files that are replaced."""

import gzip
import io
import json

import numpy as np
import obstore
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tokenfeed
from flaky_server import Break, FlakyServer, Status
from golden import golden_tokenizer
from oracle import Leg, run
from servers import s3_server
from tokenfeed.errors import ArgumentError, CorruptionError, NotAStoreError

GROUPS, ROWS = 6, 40


def texts_of(number):
    return [f"file {number} document {row} " + "word " * (row % 11) for row in range(GROUPS * ROWS)]


def parquet(number):
    """Two columns that do not compress around the text, which is a hundredth of the file."""
    random = np.random.default_rng(number)
    noise = [random.bytes(3000) for _ in range(GROUPS * ROWS)]
    written = io.BytesIO()
    table = pa.table({"before": noise, "text": texts_of(number), "after": noise})
    pq.write_table(table, written, row_group_size=ROWS, use_dictionary=False, write_statistics=False)
    return written.getvalue()


def arrow(number):
    written, table = io.BytesIO(), pa.table({"id": range(GROUPS * ROWS), "text": texts_of(number)})
    with pa.ipc.new_stream(written, table.schema) as writer:
        writer.write_table(table, max_chunksize=ROWS)
    return written.getvalue()


def lines(number):
    return "".join(json.dumps({"text": text}) + "\n" for text in texts_of(number)).encode()


def make(source, **options):
    how = {"batch_size": 4, "length": 48, "buffer_size": 8, "refill_size": 8, "split": "all"}
    return tokenfeed.stream(source, golden_tokenizer("tiktoken"), **{**how, **options})


@pytest.fixture(scope="module")
def files():
    zipped = gzip.compress(lines(3))
    texts = {"0.parquet": parquet(0), "1.parquet": parquet(1), "2.jsonl": lines(2), "3.jsonl.gz": zipped}
    return {"4.arrow": arrow(4), **texts}


@pytest.fixture
def local(files, tmp_path):
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    return [str(tmp_path / name) for name in files]


HISTORY = [Leg(2, 4, 6), Leg(2, 4, 5, 2), Leg(3, 4, 4)]


def test_http_gives_the_rows_of_local_files_through_faults(files, local):
    """Resumed twice, on another number of ranks, from a server that is busy, breaks off and sends nothing."""
    expected = run(HISTORY, lambda **how: make(local, **how), per_rank=True)
    with FlakyServer() as server:
        for name, data in files.items():
            server.put(f"/{name}", data, Status(503), Break(after=100), Status(429, {"Retry-After": "0"}))
        urls = [server.url(f"/{name}") for name in files]
        assert run(HISTORY, lambda **how: make(urls, **how), per_rank=True) == expected


def test_only_footers_and_the_text_column_are_fetched(files):
    with FlakyServer() as server:
        server.put("/0.parquet", files["0.parquet"])
        feed = make(server.url("/0.parquet"), rank=0, world_size=1, epochs=1)
        assert sum(len(batch) for batch in feed) > 50
        metadata = pq.read_metadata(io.BytesIO(files["0.parquet"]))
        text = sum(metadata.row_group(group).column(1).total_compressed_size for group in range(GROUPS))
        sent, size = server.bytes_sent("/0.parquet"), len(files["0.parquet"])
        assert sent <= text + (1 << 16) + 1000 < size / 10


def test_a_file_that_is_replaced_is_noticed(files):
    with FlakyServer() as server:
        server.put("/0.parquet", files["0.parquet"])
        feed = make(server.url("/0.parquet"), rank=0, world_size=1, prefetch=0)
        next(feed)
        state = feed.state_dict()
        server.put("/0.parquet", files["1.parquet"])
        with pytest.raises(CorruptionError, match="replaced while it was being read"):
            for _ in range(100):
                next(feed)
        with pytest.raises(tokenfeed.errors.PlanMismatchError, match="is not the file that the checkpoint"):
            make(server.url("/0.parquet"), rank=0, world_size=1).load_state_dict(state)


def test_token_files_of_others_that_lie_elsewhere(monkeypatch, tmp_path):
    """Refused with what to do. Ids in Arrow files can be prepared from there."""
    with FlakyServer() as web, s3_server() as server:
        server.use(monkeypatch)
        for name in ("mds/index.json", "mds/shard.00000.mds", "lit/index.json", "lit/chunk-0-0.bin", "hub/state.json"):
            obstore.put(server.bucket(), name, b"{}")
        table, written = pa.table({"input_ids": [[1, 2], [3]]}), io.BytesIO()
        with pa.ipc.new_stream(written, table.schema) as writer:
            writer.write_table(table)
        obstore.put(server.bucket(), "hub/data-00000.arrow", written.getvalue())
        web.put("/data/index.json", b"{}")
        for address, told in (
            ("s3://bucket/mds", r"holds data of MosaicML Streaming \(\.mds\): read it by its own package"),
            ("s3://bucket/mds/shard.00000.mds", r"is data of MosaicML Streaming \(\.mds\): read it by its"),
            ("s3://bucket/lit", r"holds data of litdata \(\.bin\): .*docs/guides/other-readers\.md"),
            ("s3://bucket/hub", r"`tokenfeed prepare s3://bucket/hub -o STORE .*`--tokens-column input_ids` for"),
            ("s3://bucket/hub/data-00000.arrow", "`tokenfeed prepare s3://bucket/hub/data-00000.arrow -o STORE"),
            (web.url("/data"), r"holds an index\.json, as data of MosaicML Streaming and litdata does: read it by its"),
            ("s3://bucket/none", r"is not a store: it has no manifest\.json"),
        ):
            with pytest.raises((ArgumentError, NotAStoreError), match=told):
                tokenfeed.open(address)
        tokenfeed.prepare("s3://bucket/hub", tmp_path / "store", tokens_column="input_ids", val=None, workers=0)
        assert tokenfeed.open(tmp_path / "store").documents()[0].tokens.tolist() == [1, 2]
