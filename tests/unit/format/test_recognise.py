"""What is said of folders and files that tokenfeed does not open."""

from pathlib import Path

import pytest

import tokenfeed
from tokenfeed.errors import NotAStoreError
from tokenfeed.format.foreign.recognise import describe


def fill(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return folder


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["index.json", "shard.00000.mds"], ["MosaicML", "tokenfeed.prepare", "other-readers.md"]),
        (["index.json", "chunk-0-0.bin"], ["litdata", "tokenfeed.prepare", "other-readers.md"]),
        (["000_merged.ds", "000_merged.ds.index"], ["datatrove", '/000_merged.ds")', "list"]),
        (["data-00000-of-00001.arrow", "state.json", "dataset_info.json"], ["Hugging Face", "--tokens-column"]),
        (["dataset_dict.json", "train/data-00000-of-00001.arrow"], ["splits", "train", "tokenfeed prepare"]),
        (["train-0.parquet", "README.md"], ["Parquet", "tokenfeed prepare", "--tokens-column input_ids"]),
        (["a.jsonl.zst"], ["JSON lines", "tokenfeed prepare"]),
        (["a.txt"], ["plain text", "tokenfeed prepare"]),
        (["_versions/1.manifest", "data/a.lance"], ["Lance", "tokenfeed.prepare", "other-readers.md"]),
        (["shard-000000.tar"], ["WebDataset", "tokenfeed.prepare", "other-readers.md"]),
        (["train.bin", "val.bin", "meta.pkl"], ["token files", '/train.bin")']),
        (["a.idx", "a.bin"], ["Megatron", '/a.idx")']),
    ],
)
def test_folders(tmp_path, names, expected):
    told = describe(fill(tmp_path / "data", *names))
    assert told is not None
    assert str(tmp_path / "data") in told
    assert [part for part in expected if part not in told] == []


def test_files(tmp_path):
    fill(tmp_path, "a.parquet", "a.jsonl.gz", "a.mds", "a.arrow", "a.tar", "a.ds", "a.bin", "photo.jpg")
    for name, expected in (("a.parquet", "Parquet"), ("a.jsonl.gz", "JSON lines"), ("a.mds", "MosaicML")):
        assert f"{tmp_path / name} is" in str(describe(tmp_path / name))
        assert expected in str(describe(tmp_path / name))
    assert "WebDataset" in str(describe(tmp_path / "a.tar"))
    for name in ("a.ds", "a.bin", "photo.jpg", "no-such.parquet"):
        assert describe(tmp_path / name) is None


def test_what_is_not_known(tmp_path):
    assert describe(tmp_path) is None
    assert describe(fill(tmp_path, "photo.jpg", "photo.json")) is None
    assert describe(tmp_path / "nothing") is None


def test_patterns(tmp_path):
    assert "sorted(glob.glob(" in str(describe(tmp_path / "*.bin"))


@pytest.mark.parametrize("options", [{}, {"dtype": "uint16"}])
@pytest.mark.parametrize("name", ["shard.00000.mds", "chunk-0-0.bin", "a.arrow", "a.feather"])
def test_files_of_other_readers_are_never_taken_for_plain_items(tmp_path, name, options):
    """Nor is a folder of them; a `.bin` beside another index.json is."""
    (tmp_path / "index.json").write_text('{"chunks": [], "config": {"data_format": ["no_header_tensor:16"]}}')
    (tmp_path / name).write_bytes(bytes(64))
    for path in (tmp_path / name, tmp_path):
        with pytest.raises(
            NotAStoreError, match=r"give that to tokenfeed\.prepare \(docs|tokenfeed prepare .*--tokens-column"
        ):
            tokenfeed.open(path, **options)
    (tmp_path / "index.json").write_text("[]")
    (tmp_path / "raw.bin").write_bytes(bytes(64))
    assert tokenfeed.open(tmp_path / "raw.bin", **options).num_items == 32
