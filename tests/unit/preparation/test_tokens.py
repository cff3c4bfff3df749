"""Data that is tokenised already: documents as they are, from every format; ids that cannot be right are refused."""

import gzip
import json

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import tokenfeed
from golden import golden_tokenizer
from preparing import contents
from tokenfeed.cli import app
from tokenfeed.errors import ArgumentError, CorruptionError, FormatError, MissingError

TOKENIZER = golden_tokenizer("tiktoken")
LISTS = [[1, 2, 3], [], None, [4000, 5], [7] * 2000]
ROWS = [{"input_ids": ids, "url": str(number)} for number, ids in enumerate(LISTS)]
KEPT = [ids for ids in LISTS if ids is not None]


def write(path, rows=ROWS, kind=None):
    table = pa.table({"input_ids": pa.array([row["input_ids"] for row in rows], kind or pa.list_(pa.int32()))})
    table = table.append_column("url", pa.array([row["url"] for row in rows]))
    lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=2)
    elif path.suffix == ".feather":
        feather.write_feather(table, path)
    elif path.suffix == ".arrow":
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=2)
    else:
        path.write_bytes(gzip.compress(lines) if path.suffix == ".gz" else lines)
    return path


def prepare(inputs, out, **options):
    return tokenfeed.prepare(inputs, out, **{"tokens_column": "input_ids", "workers": 0, "val": None, **options})


@pytest.mark.parametrize("name", ["a.parquet", "a.feather", "a.arrow", "a.jsonl", "a.jsonl.gz"])
def test_every_format(tmp_path, name):
    report = prepare(write(tmp_path / name), tmp_path / "store", keep=["url"])
    documents = [(row["input_ids"], {"url": row["url"]}) for row in ROWS]
    assert contents(tmp_path / "store") == [one for one in documents if one[0] is not None]
    assert (report.total.documents, report.total.null, report.total.tokens) == (4, 1, 2005)
    assert report.total.input_bytes == report.num_bytes
    store = tokenfeed.open(tmp_path / "store")
    assert (store.columns["tokens"].dtype, store.tokenizer) == (np.uint32, None)


@pytest.mark.parametrize("kind", [pa.large_list(pa.int64()), pa.list_(pa.uint16()), pa.list_(pa.int32(), 3)])
def test_every_kind_of_list(tmp_path, kind):
    lists = [[1, 2, 3], None, [4, 5, 6]]
    rows = [{"input_ids": ids, "url": ""} for ids in lists]
    prepare(write(tmp_path / "a.parquet", rows, kind), tmp_path / "store")
    assert [tokens for tokens, _ in contents(tmp_path / "store")] == [[1, 2, 3], [4, 5, 6]]


def test_with_a_tokenizer_the_store_knows_it_and_separators_can_be_added(tmp_path):
    prepare(write(tmp_path / "a.parquet"), tmp_path / "plain", tokenizer=TOKENIZER)
    assert [tokens for tokens, _ in contents(tmp_path / "plain")] == KEPT
    store = tokenfeed.open(tmp_path / "plain")
    assert (store.columns["tokens"].dtype, store.tokenizer) == (np.uint16, TOKENIZER.digest)
    prepare(tmp_path / "a.parquet", tmp_path / "bos", tokenizer=TOKENIZER, bos="<|bos|>")
    assert [tokens for tokens, _ in contents(tmp_path / "bos")] == [[TOKENIZER.bos_id, *ids] for ids in KEPT]


def test_a_share_is_held_out_by_the_ids(tmp_path):
    rows = [{"input_ids": [number, 1], "url": ""} for number in range(400)]
    write(tmp_path / "a.jsonl", rows)
    write(tmp_path / "b.parquet", rows)
    for name in ("a.jsonl", "b.parquet"):
        prepare(tmp_path / name, tmp_path / f"{name}-store", val=0.2, workers=1)
    val = [contents(tmp_path / f"{name}-store", split="val") for name in ("a.jsonl", "b.parquet")]
    assert val[0] == val[1]
    assert 40 < len(val[0]) < 130


@pytest.mark.parametrize(
    ("ids", "options", "message"),
    [
        ([1, -1], {}, r"row 0: 'input_ids' holds id -1"),
        ([1, 70_000], {"dtype": "uint16"}, r"id 70000; ids must be from 0 to 65,535"),
        ([1, 4096], {"tokenizer": TOKENIZER}, r"id 4096; ids must be from 0 to 4,095"),
        ([1, None], {}, r"is not a list of ids"),
    ],
)
def test_ids_that_cannot_be_right(tmp_path, ids, options, message):
    path = write(tmp_path / "a.parquet", [{"input_ids": ids, "url": ""}, {"input_ids": [3], "url": ""}])
    with pytest.raises(FormatError, match=message):
        prepare(path, tmp_path / "store", **options)
    report = prepare(path, tmp_path / "store", **options, on_error="skip")
    assert (report.total.documents, report.total.malformed) == (1, 1)


@pytest.mark.parametrize("line", [b'{"input_ids": "text"}', b'{"input_ids": [1.5]}', b"[1]", b'{"input_ids": [[1]]}'])
def test_lines_that_hold_no_ids(tmp_path, line):
    (tmp_path / "a.jsonl").write_bytes(line)
    with pytest.raises(FormatError, match=r"a\.jsonl, line 1: 'input_ids'"):
        prepare(tmp_path / "a.jsonl", tmp_path / "store")


def test_what_cannot_be_meant(tmp_path):
    path = write(tmp_path / "a.parquet")
    for options, error, message in (
        ({"tokens_column": None}, ArgumentError, "tokenizer is missing"),
        ({"bos": "<|bos|>"}, ArgumentError, "'<|bos|>' needs a tokenizer"),
        ({"map": "mine.py:annotate"}, ArgumentError, "map is for text"),
        ({"tokens_column": "ids"}, MissingError, r"no column 'ids'; it has input_ids, url.*tokens_column="),
        ({"tokens_column": "url"}, FormatError, "column 'url' is string; expected lists of integers"),
        ({"dtype": "float32"}, ArgumentError, "integer dtype"),
    ):
        with pytest.raises(error, match=message):
            prepare(path, tmp_path / "store", **options)
    (tmp_path / "bad.arrow").write_bytes(b"ARROW1 and nothing else")
    with pytest.raises(CorruptionError, match=r"bad\.arrow cannot be read"):
        prepare(tmp_path / "bad.arrow", tmp_path / "store")


def test_the_command(tmp_path):
    write(tmp_path / "data-00000-of-00001.arrow")
    (tmp_path / "state.json").write_text("{}")  # as Hugging Face datasets saves them
    command = ["prepare", tmp_path, "-o", tmp_path / "store", "--tokens-column", "input_ids", "-w", 0, "--val", "none"]
    done = CliRunner().invoke(app, [str(one) for one in command])
    assert done.exit_code == 0, done.output
    assert [tokens for tokens, _ in contents(tmp_path / "store")] == KEPT
