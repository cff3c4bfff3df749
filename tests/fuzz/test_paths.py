"""Names that come from files and servers: each stays in its folder, or is refused before anything is opened.

`Guard` of the harness watches the same for every fuzzed input. Symbolic links inside a store are followed: shards may
lie on other disks. What they lead to must still have the size and the header that the manifest says.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import tokenfeed
from tokenfeed.errors import ArgumentError, CorruptionError, FormatError, TokenfeedError
from tokenfeed.format.records import sign
from tokenfeed.preparation.inputs import find_inputs
from tokenfeed.storage.disk_cache import DiskCache
from tokenfeed.store.verify import verify
from tokenfeed.text.download.datasets import Dataset, RemoteFile, local_name
from tokenfeed.text.sources.files import TextFiles

OUTSIDE = ["../x", "..", ".", "", "/etc/passwd", "a/../../b", "a/b", "a\0b", "a\nb", "~root", ".hidden", "x" * 300, "é"]
KINDS = ["shard", "column", "span table", "split"]


@pytest.mark.parametrize("name", OUTSIDE)
@pytest.mark.parametrize("kind", KINDS)
def test_names_in_a_manifest(store_path, kind, name):
    path = store_path / "manifest.json"
    manifest = json.loads(path.read_text())
    if kind == "shard":
        manifest["shards"][0]["name"] = name
    elif kind == "split":
        manifest["shards"][0]["split"] = name
    elif kind == "column":
        manifest["columns"][name] = manifest["columns"].pop("frame")
    else:
        manifest["spans"][name] = manifest["spans"].pop("concepts")
        for shard in manifest["shards"]:
            shard["spans"][name] = shard["spans"].pop("concepts")
    path.write_text(json.dumps(manifest))
    with pytest.raises(FormatError, match="is not a valid name for a"):
        tokenfeed.open(store_path)
    with pytest.raises(FormatError, match="is not a valid name for a"):
        tokenfeed.seal(store_path)


@pytest.mark.parametrize("name", OUTSIDE)
def test_files_named_in_a_shard(store_path, name):
    """They must be those that the store needs, so none can be another."""
    path = store_path / "part-00000" / "shard.json"
    record = json.loads(path.read_text())
    record["files"][name] = record["files"].pop("tokens.npy")
    path.write_text(json.dumps(record))
    with pytest.raises(CorruptionError, match="lists the files"):
        tokenfeed.seal(store_path)
    assert not verify(store_path).ok


@pytest.mark.parametrize("name", [name for name in OUTSIDE if name not in (".hidden", "é", "x" * 300, "~root")])
def test_names_in_a_list_of_files(tmp_path, name):
    (tmp_path / "files.json").write_text(json.dumps({"version": 1, "train": [name, "b.jsonl"], "val": ["c.jsonl"]}))
    is_plain = name in ("a\0b", "a\nb")  # of a file that is not there
    with pytest.raises(TokenfeedError if is_plain else FormatError):
        for _ in TextFiles.find(tmp_path).iter_row_groups():
            pass


@pytest.mark.parametrize("name", ["../x", "..", ".", "", "a/b", "/etc/passwd"])
def test_names_of_downloads(name):
    with pytest.raises(ArgumentError):
        Dataset("name", (RemoteFile(name, ""),), (RemoteFile("b.parquet", ""),))
    made = local_name(name)
    assert "/" not in made


def test_a_packing_plan_of_another_table(store_path):
    """The table in `pack.json` is compared, and never made a path of."""
    plan = tokenfeed.open(store_path).pack(50).folder
    fields = {**json.loads((plan / "pack.json").read_bytes()), "table": "../../x"}
    del fields["checksum"]
    (plan / "pack.json").write_text(sign("tokenfeed-pack", fields))
    with pytest.raises(TokenfeedError, match="table"):
        tokenfeed.open(store_path).packed(50)


def test_only_combined_stores_may_point_elsewhere(store_path, tmp_path):
    """And what is there must be what was combined, by its identity."""
    combined = tmp_path / "all"
    tokenfeed.combine([store_path], combined)
    manifest = json.loads((combined / "manifest.json").read_text())
    for uri in ("/etc", "../nothing", "file:///etc/passwd", "/etc/passwd", "gopher://x/y", "file://other/x", "a\0b"):
        manifest["stores"][0]["uri"] = uri
        (combined / "manifest.json").write_text(json.dumps(manifest))
        with pytest.raises(TokenfeedError):
            tokenfeed.open(combined)
    other = shutil.copytree(store_path, tmp_path / "other")
    shutil.rmtree(other / "part-00001")
    tokenfeed.seal(other, replace_changed=True)
    manifest["stores"][0]["uri"] = "../other"
    (combined / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CorruptionError, match=r"version 1 of .* is lost"):
        tokenfeed.open(combined)


def test_combined_stores_do_not_multiply_without_end(tmp_path, monkeypatch):
    """None is part of another, and one that names a store many times is bounded."""
    with tokenfeed.Writer(tmp_path / "0", columns={"tokens": "u1"}) as writer:
        writer.append({"tokens": [1]})
    tokenfeed.combine([tmp_path / "0"] * 20, tmp_path / "1")
    assert tokenfeed.open(tmp_path / "1").num_items == 20
    with pytest.raises(ArgumentError, match="is a combined store, which cannot be part of another"):
        tokenfeed.combine([tmp_path / "1"], tmp_path / "2")
    monkeypatch.setattr("tokenfeed.store.resolve._MOST_SHARDS", 19)
    with pytest.raises(CorruptionError, match="combines more than 19 shards"):
        tokenfeed.open(tmp_path / "1")


def test_links_in_a_store_are_followed(store_path, tmp_path):
    """A shard on another disk; a column that leads to a file of another kind is refused, unread."""
    expected = tokenfeed.open(store_path).windows(50).read([0]).tokens.copy()
    moved = shutil.move(store_path / "part-00000", tmp_path / "disk")
    (store_path / "part-00000").symlink_to(moved)
    np.testing.assert_array_equal(tokenfeed.open(store_path).windows(50).read([0]).tokens, expected)
    secret = tmp_path / "secret"
    column = tmp_path / "disk" / "tokens.npy"
    secret.write_bytes(b"s" * column.stat().st_size)
    column.unlink()
    column.symlink_to(secret)
    with pytest.raises(CorruptionError, match=r"begins with .*, expected"):
        tokenfeed.open(store_path).windows(50).read([0])
    assert not verify(store_path).ok


def test_clearing_a_cache_removes_no_link(tmp_path):
    """Another user may have put a link into a folder that is shared."""
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "data").write_bytes(b"x" * 100_000)
    folder = tmp_path / "cache"
    cache = DiskCache(folder, 1, 512)
    (folder / "link").symlink_to(precious)
    cache._make_room(1 << 30)
    assert (precious / "data").exists()


@pytest.mark.parametrize("name", ["a.zip", "a.tar", "a.tar.gz", "a.tar.xz", "a.jsonl.xz"])
def test_other_archives_are_no_inputs(tmp_path, name):
    (tmp_path / name).write_bytes(b"PK\3\4")
    for find in (find_inputs, TextFiles.find):
        with pytest.raises(TokenfeedError):
            find(Path(tmp_path / name))
