"""A store on a server that speaks the XML API of Google Cloud Storage, found by STORAGE_EMULATOR_HOST."""

import numpy as np
import pytest

import tokenfeed
from gcs_server import GcsServer
from tokenfeed.errors import NotFoundError, ReadError
from tokenfeed.storage import objects

ITEMS = 5 << 20


@pytest.fixture
def gcs(monkeypatch):
    with GcsServer() as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.host)
        yield server


def test_a_store_is_written_and_read_there(gcs, tmp_path):
    """Its shard is larger than a part of an upload, so it comes in several."""
    tokens = np.arange(ITEMS) % 50_000
    for path in ("gs://bucket/store", tmp_path / "store"):
        with tokenfeed.Writer(path, columns={"tokens": "uint16"}, spans={"documents": "json"}, name="a") as writer:
            writer.append({"tokens": tokens}, documents={"number": 7})
    assert any("partNumber=2" in path for _, path in gcs.requests)
    there, here = tokenfeed.open("gs://bucket/store"), tokenfeed.open(tmp_path / "store")
    assert there.identity == here.identity
    loaders = [tokenfeed.Loader(store.windows(64), 8, rank=0, world_size=1) for store in (there, here)]
    for _ in range(5):
        first, second = map(next, loaders)
        assert (first.inputs == second.inputs).all()
    for loader in loaders:
        loader.close()
    tokenfeed.seal("gs://bucket/store")


def test_failures_have_their_names(gcs):
    with pytest.raises(NotFoundError, match="no such object"):
        objects.read("gs://bucket/nothing")
    with pytest.raises(NotFoundError, match="no such bucket"):
        objects.read("gs://other/nothing")
    gcs.token = "secret"
    with pytest.raises(ReadError, match="GOOGLE_APPLICATION_CREDENTIALS"):
        objects.read("gs://bucket/nothing")
