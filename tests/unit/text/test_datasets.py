"""Which files a dataset consists of, and what of an address may be shown."""

import pytest

from tokenfeed.errors import ArgumentError
from tokenfeed.storage.address import secret_of
from tokenfeed.text.download.datasets import PRESETS, Dataset, RemoteFile, find_dataset, numbered
from tokenfeed.text.sources.finding import Listing, write_listing


@pytest.mark.parametrize(("name", "num_files"), [("fineweb-edu-100b", 1823), ("climbmix-400b", 6543)])
def test_presets(monkeypatch, name, num_files):
    """The constants of nanochat/dataset.py, then and now."""
    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    dataset = find_dataset(name)
    base = f"https://huggingface.co/datasets/karpathy/{name}-shuffle/resolve/main"
    assert dataset.name == name
    assert len(dataset.train) == num_files - 1
    assert dataset.train[0] == RemoteFile("shard_00000.parquet", f"{base}/shard_00000.parquet", on_hub=True)
    last = f"shard_{num_files - 1:05d}.parquet"
    assert dataset.val == (RemoteFile(last, f"{base}/{last}", on_hub=True),)
    assert [file.name for file in dataset.train] == sorted(file.name for file in dataset.train)

    monkeypatch.setenv("HF_ENDPOINT", "https://mirror.example/")
    assert find_dataset(name).val[0].url.startswith("https://mirror.example/datasets/karpathy/")


def test_numbered():
    assert [file.url for file in numbered("s3://bucket/a/b_{0..2}").train] == ["s3://bucket/a/b_0", "s3://bucket/a/b_1"]
    dataset = numbered("https://user:word@host:80/some/path/a%20{8..11}.bin?signature=1")
    assert [file.name for file in dataset.train] == ["a 8.bin", "a 9.bin", "a 10.bin"]
    assert dataset.val[0].url == "https://host:80/some/path/a%2011.bin"
    assert secret_of(dataset.val[0].url) == ("user:word", "signature=1", (), "")
    assert dataset.name == "host-80--some--path"
    assert "word" not in repr(dataset)
    assert "signature" not in repr(dataset)


@pytest.mark.parametrize("template", ["/{3..3}.txt", "/{5..3}.txt", "/{a..b}.txt", "/{0..3}/a.txt", "/a{0..3}.tmp"])
def test_what_numbers_nothing(template):
    with pytest.raises(ArgumentError):
        numbered(f"https://host{template}")


def test_without_an_end(tmp_path):
    """The file for validation is the one after those to train on, and stays what it is."""
    names = lambda dataset: [file.name for file in dataset.train]  # noqa: E731
    address = "https://host/a_{:03d}.txt?x=1"
    assert names(find_dataset(address, count=2)) == ["a_000.txt", "a_001.txt"]
    assert find_dataset(address, count=2).val[0].name == "a_002.txt"
    write_listing(tmp_path, Listing(("a_000.txt", "a_001.txt"), ("a_002.txt",)))
    grown = find_dataset(address, count=4, folder=tmp_path)
    assert names(grown) == ["a_000.txt", "a_001.txt", "a_003.txt", "a_004.txt"]
    assert grown.val[0].url == "https://host/a_002.txt"
    fewer = find_dataset(address, count=1, folder=tmp_path)
    assert (names(fewer), fewer.val[0].name) == (["a_000.txt"], "a_002.txt")
    assert names(find_dataset("https://host/{}.txt", count=2)) == ["0.txt", "1.txt"]
    write_listing(tmp_path, Listing((), ("other.txt",)))
    assert find_dataset(address, count=2, folder=tmp_path).val[0].name == "a_002.txt"


@pytest.mark.parametrize("source", ["fineweb", "", "https://me:secret@host/file.txt?secret=2", "s3://b/a"])
def test_what_names_no_dataset(source):
    with pytest.raises(ArgumentError, match=", ".join(PRESETS)) as caught:
        find_dataset(source)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "names", [("a", "a"), ("", "b"), ("..", "b"), ("x/y", "b"), ("a.tmp", "b"), ("files.json", "b")]
)
def test_names_of_files(names):
    with pytest.raises(ArgumentError):
        Dataset("name", (RemoteFile(names[0], ""),), (RemoteFile(names[1], ""),))
