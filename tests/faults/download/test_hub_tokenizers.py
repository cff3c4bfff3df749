"""Tokenizers of the Hugging Face hub, by a server that answers as it does."""

import json

import huggingface_hub.constants
import pytest

from any_tokenizers import make
from flaky_server import Status, make_etag
from tokenfeed.errors import DependencyError, DownloadError, NotFoundError
from tokenfeed.text.tokenizer.tokenizer import Tokenizer

COMMIT = "0123456789" * 4
TOKEN = "hf_verysecretindeed"


@pytest.fixture
def hub(server, monkeypatch, tmp_path):
    monkeypatch.setenv("HF_ENDPOINT", server.url(""))
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    files = {
        "tokenizer.json": make("bert").to_str().encode(),
        "tokenizer_config.json": json.dumps({"bos_token": "<s>"}).encode(),
        "model.safetensors": bytes(1000),
    }
    listed = [{"type": "file", "path": name, "size": len(data), "oid": "0" * 40} for name, data in files.items()]
    info = {"id": "owner/name", "sha": COMMIT, "siblings": [{"rfilename": name} for name in files]}
    server.put("/api/models/owner/name/revision/main", json.dumps(info).encode())
    server.put(f"/api/models/owner/name/tree/{COMMIT}", json.dumps(listed).encode())
    for name, data in files.items():
        headers = {"X-Repo-Commit": COMMIT, "ETag": make_etag(data)}
        server.put(f"/owner/name/resolve/{COMMIT}/{name}", data, headers=headers, etag=False)
    return server


def test_a_tokenizer_of_the_hub(hub):
    """Only its own files are fetched, with the user's token; later it is found without the hub."""
    tokenizer = Tokenizer.from_pretrained("owner/name")
    assert tokenizer.bos_id == 1
    assert tokenizer.encode("the").tolist() == make("bert").encode("the").ids
    asked = [request for request in hub.requests if "/resolve/" in request.path]
    assert {request.path.rpartition("/")[2] for request in asked} == {"tokenizer.json", "tokenizer_config.json"}
    assert {request.headers["Authorization"] for request in asked} == {f"Bearer {TOKEN}"}
    hub.close()
    for address in ("hf://owner/name", "hf://owner/name@main"):
        assert Tokenizer.load(address).digest == tokenizer.digest


@pytest.mark.parametrize(("status", "code"), [(401, "RepoNotFound"), (403, "GatedRepo"), (403, ""), (404, "")])
def test_a_repository_that_is_not_there_or_closed(hub, status, code):
    hub.put("/api/models/owner/other/revision/main", b"", Status(status, {"X-Error-Code": code}), ...)
    with pytest.raises(DownloadError, match=rf"no folder owner/other, .*: the hub answered {status}\. .*log in"):
        Tokenizer.from_pretrained("owner/other")


def test_what_is_neither_a_folder_nor_on_the_hub(hub, tmp_path, monkeypatch):
    with pytest.raises(NotFoundError, match="no tokenizer at a b/c: no such path"):
        Tokenizer.from_pretrained("a b/c")
    with pytest.raises(NotFoundError, match="does not exist"):
        Tokenizer.from_pretrained(tmp_path)
    with pytest.raises(ValueError, match="revision is 'v1', but"):
        Tokenizer.from_pretrained(tmp_path, revision="v1")
    hub.close()
    with pytest.raises(DownloadError, match=r"no folder owner/other, .*: the hub cannot be reached"):
        Tokenizer.from_pretrained("owner/other")
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", None)
    with pytest.raises(DependencyError, match=r"no folder owner/other; .*tokenfeed\[hub\]"):
        Tokenizer.from_pretrained("owner/other")
