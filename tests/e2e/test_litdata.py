"""What the real litdata writes, opened in place and converted as the migration guide says: no token is lost."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import tokenfeed
from tokenfeed.errors import FormatError

pytestmark = pytest.mark.slow

WRITE = """
import functools, sys
import numpy as np, torch
from litdata import StreamingDataset, TokensLoader, optimize

def document(number, make):
    return make(np.random.default_rng(number).integers(0, 50_000, 1 + number * 37 % 423))

def tensor(ids):
    return torch.from_numpy(ids).to(torch.int32)

def array(ids):
    return ids.astype(np.uint16)

if __name__ == "__main__":
    for name, make, how in (
        ("tensor", tensor, {"item_loader": TokensLoader()}),
        ("array", array, {"item_loader": TokensLoader()}),
        ("zstd", array, {"item_loader": TokensLoader(), "compression": "zstd", "compression_level": "chunk"}),
        ("items", tensor, {}),
    ):
        write = functools.partial(document, make=make)
        optimize(fn=write, inputs=list(range(200)), output_dir=name, chunk_bytes="20KB", num_workers=1, **how)
    np.save("items.npy", np.concatenate([item.numpy() for item in StreamingDataset("items", shuffle=False)]))
    np.save("lengths.npy", [len(item) for item in StreamingDataset("items", shuffle=False)])
"""


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    if find_spec("litdata") is None or find_spec("zstd") is None:
        pytest.skip("litdata is NOT TESTED here: it needs the packages litdata and zstd")
    folder = tmp_path_factory.mktemp("litdata")
    (folder / "write.py").write_text(WRITE)
    subprocess.run([sys.executable, "write.py"], cwd=folder, check=True, timeout=250, capture_output=True)
    return folder


EXPECTED = [np.random.default_rng(number).integers(0, 50_000, 1 + number * 37 % 423) for number in range(200)]


def check(store: tokenfeed.Store) -> None:
    assert store.num_items == sum(map(len, EXPECTED))
    documents = store.documents()
    assert [documents[number].tokens.tolist() for number in range(len(documents))] == [e.tolist() for e in EXPECTED]


@pytest.mark.parametrize("name", ["tensor", "array"])
def test_opened_in_place(written, name):
    assert len(list((written / name).glob("*.bin"))) > 3
    check(tokenfeed.open(written / name))
    chunks = [entry["filename"] for entry in json.loads((written / name / "index.json").read_text())["chunks"]]
    check(tokenfeed.open([written / name / chunk for chunk in chunks]))


def test_decompressed_in_place(written):
    with pytest.raises(FormatError, match=r"compressed \(zstd\)"):
        tokenfeed.open(written / "zstd")
    import zstd

    index = json.loads((written / "zstd" / "index.json").read_text())
    for chunk in index["chunks"]:
        path = Path(written / "zstd" / chunk["filename"])
        path.write_bytes(zstd.decompress(path.read_bytes()))
    index["config"]["compression"] = None
    (written / "zstd" / "index.json").write_text(json.dumps(index))
    check(tokenfeed.open(written / "zstd"))


def test_converted_by_the_guide(written, tmp_path):
    check(tokenfeed.open(written / "items"))
    tokens, lengths = np.load(written / "items.npy"), np.load(written / "lengths.npy")
    with tokenfeed.Writer(tmp_path / "out", columns={"tokens": "uint16"}, spans={"documents": None}) as writer:
        for item in np.split(tokens, np.cumsum(lengths)[:-1]):
            writer.append({"tokens": item})
    check(tokenfeed.open(tmp_path / "out"))
