"""A server that can be told to misbehave, and an environment without settings of the user's."""

import pytest

from flaky_server import FlakyServer


@pytest.fixture
def server():
    with FlakyServer() as server:
        yield server


@pytest.fixture(autouse=True)
def environment(monkeypatch, tmp_path):
    for name in ("HF_TOKEN", "HF_ENDPOINT", "http_proxy", "HTTP_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TOKENFEED_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
