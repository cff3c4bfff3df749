"""Manifests: round trips, and everything that can be wrong with one."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenfeed.errors import FormatError
from tokenfeed.format.manifest import (
    Column,
    FileRecord,
    Manifest,
    Reference,
    ShardEntry,
    ShardRecord,
    SpanCount,
    Version,
)

SUM = "0123456789abcdef"
MANIFEST = Manifest(
    {"tokens": Column(np.dtype("<u2")), "frame": Column(np.dtype("u1"), (3, 4))},
    {"documents": "json", "lines": None},
    "gpt2",
    {"by": "é"},
    (ShardEntry("a-00000", 5, {"documents": SpanCount(2, 9), "lines": SpanCount(1, 0)}, SUM, "val"),),
)
MANIFEST = replace(MANIFEST, versions=(Version.of(MANIFEST.shards),))
GROWN = replace(MANIFEST, versions=(Version.of(()), *MANIFEST.versions))
GROWING = replace(GROWN, shards=None, earlier=GROWN.shards)
COMBINED = Manifest(
    MANIFEST.columns, MANIFEST.spans, stores=(Reference("../a", SUM), Reference("/b.bin", SUM, "<u2", 7))
)
RECORD = ShardRecord(5, MANIFEST.shards[0].spans, {"tokens.npy": FileRecord(138, SUM)}, "val")


@pytest.mark.parametrize("manifest", [MANIFEST, COMBINED, GROWN, GROWING])
def test_manifest_round_trip(manifest):
    assert Manifest.from_json(manifest.to_json().encode(), "m") == manifest


def test_shard_record_round_trip():
    assert ShardRecord.from_json(RECORD.to_json().encode(), "s", MANIFEST.spans) == RECORD


def changed(path, value):
    """The manifest as JSON with one value replaced; `...` removes it."""
    tree = json.loads(MANIFEST.to_json())
    node = tree
    for key in path[:-1]:
        node = node[key]
    if value is ...:
        del node[path[-1]]
    else:
        node[path[-1]] = value
    return json.dumps(tree).encode()


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["format"], "zarr", "format is 'zarr'"),
        (["version"], 2, "version 2; this version of tokenfeed reads version 1"),
        (["version"], ..., "version None"),
        (["version"], True, "version True"),
        (["columns"], [], "columns is"),
        (["columns", "tokens", "dtype"], "|O", "dtype"),
        (["columns", "tokens", "dtype"], ">u2", "little-endian"),
        (["columns", "tokens", "dtype"], "nonsense", "dtype"),
        (["columns", "frame", "shape"], [3, -4], r"columns 'frame' shape\[1\] is -4, expected a whole number"),
        (["columns", "frame", "shape"], [2**62], "whole number"),
        (["columns", "frame", "shape"], [3, 0], "an item has 0 bytes"),
        (["columns", "frame"], 7, "JSON object"),
        (["columns", "a.starts"], {"dtype": "<u2", "shape": []}, "not a valid name for a column"),
        (["spans", "documents"], {}, "spans 'documents' codec is missing"),
        (["spans", "documents", "codec"], 5, "expected a string"),
        (["tokenizer"], 5, "expected a string"),
        (["shards"], {}, "expected a list"),
        (["shards", 0], "a", "JSON object"),
        (["shards", 0, "name"], None, "not a valid name for a shard"),
        (["shards", 0, "items"], -1, "whole number"),
        (["shards", 0, "items"], 2**62, "whole number"),
        (["shards", 0, "items"], 1.5, "whole number"),
        (["shards", 0, "items"], True, "whole number"),
        (["shards", 0, "checksum"], "xyz", "hexadecimal"),
        (["shards", 0, "spans"], {}, "span tables"),
        (["shards", 0, "spans", "documents"], [1], "two whole numbers"),
        (["shards", 0, "spans", "documents"], [1, -1], "whole number"),
        (["stores"], [], "several of shards, earlier and stores"),
    ],
)
def test_what_is_wrong_is_named(path, value, message):
    with pytest.raises(FormatError, match=message) as caught:
        Manifest.from_json(changed(path, value), "some/manifest.json")
    assert "some/manifest.json" in str(caught.value) or "columns" not in path


def test_a_shard_listed_twice():
    tree = json.loads(MANIFEST.to_json())
    tree["shards"] *= 2
    with pytest.raises(FormatError, match="twice"):
        Manifest.from_json(json.dumps(tree).encode(), "m")


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100_000, b'{"format": NaN}'])
def test_not_even_json(data):
    with pytest.raises(FormatError, match="some file"):
        Manifest.from_json(data, "some file")


@given(st.binary(max_size=3), st.integers(0, 400), st.integers(0, 5))
def test_damaged_bytes_give_a_typed_error_or_a_manifest(patch, position, cut):
    data = MANIFEST.to_json().encode()
    damaged = data[:position] + patch + data[position + cut :]
    try:
        Manifest.from_json(damaged, "m")
        ShardRecord.from_json(damaged, "m", {})
    except FormatError:
        pass
    except ValueError as error:
        raise AssertionError("not one of ours") from error
