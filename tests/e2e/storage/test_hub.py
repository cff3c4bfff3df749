"""The Hugging Face hub: a store is opened by ranges, and text is streamed, with nothing downloaded first."""

import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tokenfeed
from golden import golden_tokenizer
from hub_server import HubServer
from servers import free_port
from tokenfeed.errors import ArgumentError, DownloadError, NotFoundError, TokenfeedError
from tokenfeed.storage import hub as module
from tokenfeed.store.verify import verify

# huggingface_hub 2.4 with httpx 0.28
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")

TOKEN = "hf_verysecretindeed"


@pytest.fixture
def hub(monkeypatch):
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(module, "_pinned", {})
    with HubServer(TOKEN) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield server


@pytest.fixture
def store(tmp_path):
    with tokenfeed.Writer(tmp_path / "store", columns={"tokens": "uint16"}, spans={"documents": "json"}) as writer:
        for number in range(200):
            writer.append({"tokens": np.arange(number, 3 * number)}, documents={"number": number})
    return tmp_path / "store"


def upload(store, path=None):
    """What `hf upload` does, as docs/remote.md says it."""
    import huggingface_hub

    client = huggingface_hub.HfApi(endpoint=os.environ["HF_ENDPOINT"])
    client.create_repo("owner/name", repo_type="dataset", exist_ok=True)
    options = {"repo_type": "dataset", "ignore_patterns": [".*"]}
    client.upload_folder(repo_id="owner/name", folder_path=store, path_in_repo=path, **options)


def rows(loader, count=5):
    return np.concatenate([next(loader).column("tokens") for _ in range(count)])


def test_a_store_is_opened_by_ranges(hub, store):
    """The token goes to the hub and not to the servers it names; only what is needed is fetched."""
    upload(store)
    commit = hub.newest("owner/name")
    names = {str(path.relative_to(store)) for path in store.rglob("*") if path.is_file()}
    assert {name for name in names if not name.startswith(".")} == set(hub.repositories["owner/name"]["main"])
    local = tokenfeed.open(store)
    for given in ("hf://owner/name", "hf://datasets/owner/name@main", f"hf://datasets/owner/name@{commit}"):
        hub.requests.clear()
        remote = tokenfeed.open(given)
        assert remote.num_items == local.num_items
        state = None
        with tokenfeed.Loader(remote.windows(32), 4) as there, tokenfeed.Loader(local.windows(32), 4) as here:
            assert np.array_equal(rows(there), rows(here))
            state = there.state_dict()
        with tokenfeed.Loader(local.windows(32), 4) as here:
            here.load_state_dict(state)  # the same data, wherever it lies
        assert np.array_equal(remote.documents()[7].tokens, np.arange(7, 21))
        assert (verify(given).problems, verify(given).num_bytes) == ([], verify(store).num_bytes)
        assert all(commit in path or "/cdn/" in path or "/api/" in path for _, path, _ in hub.requests)
        assert any(asked is not None for _, path, asked in hub.requests if "/cdn/" in path)


def test_a_reader_keeps_its_commit(hub, store, monkeypatch):
    upload(store)
    before = tokenfeed.open("hf://owner/name")
    first = hub.newest("owner/name")
    num_items = before.num_items
    columns, spans = {"tokens": "uint16"}, {"documents": "json"}
    with tokenfeed.Writer(store, columns=columns, spans=spans, mode="append") as writer:
        writer.append({"tokens": np.arange(5000)}, documents={"number": -1})
    upload(store)
    assert before.num_items == num_items
    assert before.windows(32)[0].tokens.size == 33
    assert tokenfeed.open("hf://owner/name").num_items == num_items
    monkeypatch.setattr(module, "_pinned", {})  # another process
    assert tokenfeed.open("hf://owner/name").num_items == num_items + 5000
    assert tokenfeed.open(f"hf://owner/name@{first}").num_items == num_items


def test_what_is_not_there(hub, store, monkeypatch):
    with pytest.raises(ArgumentError, match="is not of the form hf://owner/name"):
        tokenfeed.open("hf://owner")
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(DownloadError, match=r"the hub answered 401\. Put a token into HF_TOKEN") as caught:
        tokenfeed.open("hf://owner/name")
    assert "hf_wrong" not in str(caught.value)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with pytest.raises(NotFoundError, match=r"cannot open hf://owner/none: the hub answered 404"):
        tokenfeed.open("hf://owner/none")
    upload(store, "sub")
    assert tokenfeed.open("hf://owner/name/sub").num_items > 0
    with pytest.raises(TokenfeedError, match="manifest"):
        tokenfeed.open("hf://owner/name")
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{free_port()}")
    with pytest.raises(DownloadError, match="the hub cannot be reached"):
        tokenfeed.open("hf://owner/name")


def parquet(number, tmp_path):
    texts = [f"document {number} {row} " + "word " * (row % 7) for row in range(40)]
    path = tmp_path / "text.parquet"
    pq.write_table(pa.table({"text": texts, "other": ["x" * 50] * 40}), path, row_group_size=8)
    return path.read_bytes()


def stream(source, **options):
    how = {"batch_size": 2, "length": 24, "buffer_size": 6, "refill_size": 4, "rank": 0, "world_size": 1, "prefetch": 0}
    return tokenfeed.stream(source, golden_tokenizer("tiktoken"), split="all", **{**how, **options})


def test_text_is_streamed_from_a_repository(hub, tmp_path):
    """By a pattern, a folder and below, or the whole repository; a commit that comes later changes nothing."""
    names = ["data/train-0.parquet", "data/train-1.parquet", "more/deep/x.parquet"]
    files = {name: parquet(number, tmp_path) for number, name in enumerate(names)}
    hub.commit("owner/name", {**files, "README.md": b"# hello"})
    for name, data in files.items():
        path = tmp_path / "local" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    local = tmp_path / "local"
    for source, here in (
        ("hf://owner/name/data/*.parquet", local / "data"),
        ("hf://owner/name/**/*.parquet", str(local / "**/*.parquet")),
        ("hf://owner/name", str(local / "**/*.parquet")),
        ("hf://owner/name/data/train-1.parquet", local / "data" / "train-1.parquet"),
    ):
        feed = stream(source)
        expected = stream(here)
        assert np.array_equal(rows(feed, 8), rows(expected, 8))
    state = feed.state_dict()
    hub.commit("owner/name", {"data/train-1.parquet": parquet(9, tmp_path)})
    again = stream("hf://owner/name/data/train-1.parquet")
    again.load_state_dict(state)
    assert np.array_equal(rows(again), rows(expected))
    assert [path for _, path, _ in hub.requests if path.endswith("README.md")] == []
    with pytest.raises(NotFoundError, match="matches no file ending in"):
        stream("hf://owner/name/*.jsonl")
