"""docs/guides/other-readers.md: what the real packages write, prepared by the lines of the page; no token is lost.

`make trainers` installs the packages. Without one, its test says so and is skipped; `.ci/nightly` allows no skip.
"""

import functools
import subprocess
import sys
import tarfile
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import pages
import tokenfeed
from golden import golden_texts, golden_tokenizer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.filterwarnings("default")]

PAGE = Path(__file__).parents[3] / "docs" / "guides" / "other-readers.md"
IDS = [np.random.default_rng(number).integers(0, 50_000, 1 + number * 37 % 423) for number in range(200)]


WITHOUT_IMAGES = """
import sys, types
sys.modules["streaming.vision"] = types.ModuleType("streaming.vision")
"""
"""Streaming imports torchvision for its image datasets; a stand-in for that part is enough for tokens."""


def run_block(package, folder, first=""):
    """The lines of the page that import a package, run in a process in that folder."""
    (step,) = [step for step in pages.parse(PAGE) if f"import {package}\n" in step.code]
    assert step.needs == "needs=packages"
    run(first + step.code, folder)


def run(code, folder):
    (folder / "program.py").write_text(code)
    done = subprocess.run([sys.executable, "program.py"], cwd=folder, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr


def need(package):
    if find_spec(package) is None:
        pytest.skip(f"NOT TESTED, {package} is not installed: `make trainers` installs it")


def assert_documents(path, expected):
    documents = tokenfeed.open(path).documents()
    assert len(documents) == len(expected)
    for document, ids in zip(documents, expected, strict=True):
        np.testing.assert_array_equal(document.tokens, ids)


MDS = """
import numpy, streaming

options = {"columns": {"tokens": "ndarray:uint16", "name": "str"}, "compression": "zstd", "size_limit": 20_000}
with streaming.MDSWriter(out="mds", **options) as out:
    for number in range(200):
        ids = numpy.random.default_rng(number).integers(0, 50_000, 1 + number * 37 % 423)
        out.write({"tokens": ids.astype(numpy.uint16), "name": str(number)})
"""


def test_mds(tmp_path):
    need("streaming")
    run(WITHOUT_IMAGES + MDS, tmp_path)
    run_block("streaming", tmp_path, WITHOUT_IMAGES)
    assert_documents(tmp_path / "from-mds", IDS)


LITDATA = """
import numpy, torch
from litdata import optimize

def write(number):
    return torch.from_numpy(numpy.random.default_rng(number).integers(0, 50_000, 1 + number * 37 % 423)).int()

if __name__ == "__main__":
    optimize(fn=write, inputs=list(range(200)), output_dir="litdata", chunk_bytes="20KB", num_workers=1)
"""


def test_litdata(tmp_path):
    need("litdata")
    run(LITDATA, tmp_path)
    run_block("litdata", tmp_path)
    assert_documents(tmp_path / "from-litdata", IDS)


def test_lance(tmp_path):
    need("lance")
    import lance

    lance.write_dataset(pa.table({"input_ids": [ids.tolist() for ids in IDS]}), tmp_path / "corpus.lance")
    run_block("lance", tmp_path)
    assert_documents(tmp_path / "from-lance", IDS)


def test_webdataset(tmp_path):
    """Samples of two archives; some have no text."""
    need("webdataset")
    texts, tokenizer = golden_texts()[:40], golden_tokenizer()
    for part in range(2):
        with tarfile.open(tmp_path / f"corpus-{part:06}.tar", "w") as archive:
            add = functools.partial(add_file, archive)
            for number, text in enumerate(texts[20 * part : 20 * part + 20]):
                add(f"{part}-{number}.jpg", b"an image")
                add(f"{part}-{number}.txt", text.encode())
            add(f"{part}-last.jpg", b"an image without text")
    tokenizer.save(tmp_path / "tokenizer.json")
    run_block("webdataset", tmp_path)
    assert_documents(tmp_path / "from-webdataset", [tokenizer.encode(text, prepend="<|bos|>") for text in texts])


def add_file(archive, name, data):
    member = tarfile.TarInfo(name)
    member.size = len(data)
    archive.addfile(member, BytesIO(data))
