"""What is said of folders and files that tokenfeed does not open."""

from pathlib import Path

import pytest

from tokenfeed.format.foreign.recognise import describe


def fill(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return folder


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["index.json", "shard.00000.mds"], ["MosaicML", "Writer", "migrating.md"]),
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
