"""An object that is replaced while a run reads it: an error where the server tells versions apart."""

import numpy as np
import pytest

import tokenfeed
from flaky_server import FlakyServer
from tokenfeed.errors import CorruptionError


def test_bytes_of_two_versions_are_never_delivered(tmp_path):
    stores = {}
    for name in ("old", "new"):
        with tokenfeed.Writer(tmp_path / name, columns={"tokens": "uint16"}, name="a") as writer:
            writer.append({"tokens": np.arange(60_000) + (name == "new")})
        stores[name] = {path.relative_to(tmp_path / name): path for path in (tmp_path / name).rglob("*.*")}
    date = {"Last-Modified": "Mon, 16 Nov 2026 12:00:00 GMT"}
    with FlakyServer() as server:
        for name, path in stores["old"].items():
            server.put(f"/store/{name}", path.read_bytes(), etag=True, headers=date)
        view = tokenfeed.open(server.url("/store")).windows(64)
        assert view[3].tokens[0] == 192
        (column,) = (name for name in stores["new"] if name.name == "tokens.npy")
        server.put(f"/store/{column}", stores["new"][column].read_bytes(), etag=True, headers=date)
        with pytest.raises(CorruptionError):
            view[900]
