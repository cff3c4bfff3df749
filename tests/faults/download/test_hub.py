"""Repositories of the Hugging Face hub, and secrets that must not be shown."""

import base64
import hashlib
import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from command_line import COMMAND
from downloads import (
    SIZE,
    contents,
    get,
    label,
    make_file,
    ranges,
)
from flaky_server import Break, FlakyServer, Flip, Stall, Status
from tokenfeed.cli import app
from tokenfeed.errors import ArgumentError, DependencyError, DownloadError, TokenfeedError
from tokenfeed.storage import hub as storage_hub
from tokenfeed.text.download import datasets
from tokenfeed.text.download.shards import download
from tokenfeed.text.sources.finding import read_listing

FILES = {
    "README.md": b"# hello",
    "data/a-0.parquet": make_file(0),
    "data/a-1.parquet": make_file(1),
    "data/sub/b.parquet": make_file(2),
    "z.parquet": make_file(3),
}
TOKEN = "hf_verysecretindeed"


@pytest.fixture
def hub(server, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", server.url("/"))
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    return server


def test_a_repository(hub, tmp_path):
    """Listed in pages, with sizes and checksums; the files lie in one folder under plain names."""
    hub.put_repository("owner/name", FILES, page=2)
    done = download("hf://owner/name")
    assert done.ok, done.failed
    assert done.folder == tmp_path / "cache" / "owner--name"
    names = ["data--a-0.parquet", "data--a-1.parquet", "data--sub--b.parquet", "z.parquet"]
    assert [path.name for path in done.paths] == names
    assert list(contents(done.folder).values()) != []
    assert contents(done.folder) == dict(zip(names, list(FILES.values())[1:], strict=True))
    assert read_listing(done.folder).val == done.val == ()
    assert len(hub.asked("/api/datasets/owner/name/tree/main")) == 3
    ours = [request for request in hub.requests if "owner/name" in request.path]
    assert {request.headers["Authorization"] for request in ours} == {f"Bearer {TOKEN}"}


def test_files_that_say_their_split_are_respected(hub):
    """What is for validation or for tests never becomes train."""
    names = ("en/test-0.parquet", "en/train-0.parquet", "en/train-1.parquet", "en/validation-0.parquet")
    hub.put_repository("owner/name", {name: make_file(number) for number, name in enumerate(names)})
    done = download("hf://owner/name")
    listing = read_listing(done.folder)
    assert listing.train == ("en--train-0.parquet", "en--train-1.parquet")
    assert listing.val == done.val == ("en--validation-0.parquet",)
    assert done.left_out == ("en--test-0.parquet",)
    assert set(contents(done.folder)) == {*listing.train, *listing.val}
    assert CliRunner().invoke(app, ["download", "hf://owner/name"]).exit_code == 0
    hub.put_repository("owner/other", {"en/gsm8k-test-0.parquet": make_file(0), "en/train-0.parquet": make_file(1)})
    words = r"en/gsm8k-test-0\.parquet may be held out, or data.*other/\*\*/\*\.parquet' with val='gsm8k-test-\*'"
    with pytest.raises(DownloadError, match=words):
        download("hf://owner/other")


def test_a_dataset_known_by_name(hub, tmp_path, monkeypatch):
    """The hub tells size and SHA-256 of each of its files; nothing is asked about those that are there."""
    monkeypatch.setitem(datasets.PRESETS, "small", ("owner/small", 2))
    files = {f"shard_{number:05d}.parquet": make_file(number) for number in range(3)}
    hub.put_repository("owner/small", files)
    hub.resources["/cdn/owner/small/shard_00001.parquet"].script = [Flip(500)]
    assert download("small", tmp_path).ok
    assert contents(tmp_path) == files
    assert len(ranges(hub, "/cdn/owner/small/shard_00001.parquet")) == 2
    assert hub.asked("/api/datasets/owner/small/tree/main") == []
    asked = len(hub.requests)
    assert download("small", tmp_path).ok
    assert len(hub.requests) == asked


@pytest.mark.parametrize("dataset", ["hf://owner/name", "climbmix-400b"])
def test_without_the_package_of_the_hub(hub, tmp_path, monkeypatch, dataset):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(DependencyError, match=r"pip install 'tokenfeed\[hub\]'"):
        download(dataset, tmp_path, count=1)


def test_a_revision_and_a_folder(hub, tmp_path):
    hub.put_repository("owner/name", FILES, revision="v1.0")
    hub.resources["/api/datasets/owner/name/tree/v1.0/data"] = hub.resources["/api/datasets/owner/name/tree/v1.0"]
    assert download("hf://owner/name@v1.0/data").folder.name == "owner--name--data@v1.0"


def test_the_token_goes_to_the_hub_alone(hub, tmp_path):
    hub.put_repository("owner/name", FILES)
    with FlakyServer() as elsewhere:
        elsewhere.put("/x.parquet", FILES["z.parquet"], Break(70_000))
        target = elsewhere.url("/x.parquet?sig=signed")
        hub.put("/datasets/owner/name/resolve/main/z.parquet", b"", Status(302, {"Location": target}), ...)
        done = download("hf://owner/name", tmp_path)
        assert done.ok, done.failed
        assert [request.headers.get("Authorization") for request in elsewhere.requests] == [None, None]
        assert ranges(elsewhere, "/x.parquet") == [None, "bytes=70000-"]


def test_a_wrong_checksum_in_the_list(hub, tmp_path):
    hub.put_repository("owner/name", FILES, oid=lambda data: hashlib.sha256(data + b"!").hexdigest())
    done = download("hf://owner/name", tmp_path)
    assert len(done.failed) == 4
    assert "sha256 is" in done.failed["z.parquet"]
    assert contents(tmp_path) == {}


def test_a_size_other_than_listed(hub, tmp_path):
    """A file of the right size is skipped, one of another is replaced; a server that has another is not believed."""
    hub.put_repository("owner/name", FILES)
    (tmp_path / "z.parquet").write_bytes(b"PAR1PAR1")
    (tmp_path / "data--a-0.parquet").write_bytes(FILES["data/a-0.parquet"])
    hub.resources["/cdn/owner/name/data/a-1.parquet"].become(make_file(7, 100))
    done = download("hf://owner/name", tmp_path)
    assert done.skipped == ("data--a-0.parquet",)
    assert list(done.failed) == ["data--a-1.parquet"]
    assert "says 200,000 bytes" in done.failed["data--a-1.parquet"]
    assert (tmp_path / "z.parquet").read_bytes() == FILES["z.parquet"]


def test_a_part_of_what_was_listed_before(hub, tmp_path):
    """A part, even a whole one, of a version that the list does not know any more is thrown away."""
    hub.put_repository("owner/name", FILES)
    old = make_file(8)
    etag = hub.resources["/cdn/owner/name/z.parquet"].etag
    for size in (70_000, SIZE):
        note = {"etag": etag, "size": SIZE, "sha256": hashlib.sha256(old).hexdigest()}
        (tmp_path / "z.parquet.tmp").write_bytes(old[:size])
        (tmp_path / "z.parquet.tmp.json").write_text(json.dumps(note))
        assert download("hf://owner/name", tmp_path).ok
        assert contents(tmp_path)["z.parquet"] == FILES["z.parquet"]
        (tmp_path / "z.parquet").unlink()
    assert ranges(hub, "/cdn/owner/name/z.parquet") == [None, None]


@pytest.mark.parametrize(
    ("behaviour", "message"),
    [
        (Status(404), "404.*HF_TOKEN"),
        (Status(401), "401.*HF_TOKEN"),
        (Status(200, {}, b"<html>"), "does not answer with a list"),
        (Status(200, {}, b'{"error": "no"}'), "does not answer with a list"),
        (Status(200, {}, b"[]"), "0 parquet files, and none to train on"),
    ],
    ids=label,
)
def test_a_list_that_cannot_be_had(hub, tmp_path, behaviour, message):
    hub.put("/api/datasets/owner/name/tree/main", b"", behaviour, ...)
    with pytest.raises(DownloadError, match=message):
        download("hf://owner/name", tmp_path)


def test_a_list_without_end(hub, tmp_path, monkeypatch):
    monkeypatch.setattr(storage_hub, "_MOST_PAGES", 20)
    where = "/api/datasets/owner/name/tree/main"
    for entries in (b"[]", b'[{"type": "directory", "path": "data", "size": 0, "oid": "0"}]'):
        hub.put(where, b"", Status(200, {"Link": f'<{hub.url(where)}?more>; rel="next"'}, entries), ...)
        asked = len(hub.asked(where))
        with pytest.raises(DownloadError, match="after 20 pages its list has not ended"):
            download("hf://owner/name", tmp_path)
        assert len(hub.asked(where)) - asked == 20


@pytest.mark.parametrize("name", ["a\0b", "x" * 300, "\ud800"])
def test_names_that_no_file_can_have(hub, tmp_path, name):
    entry = {"type": "file", "path": f"{name}.parquet", "size": 1, "oid": "0" * 40}
    hub.put("/api/datasets/owner/name/tree/main", b"", Status(200, {}, json.dumps([entry]).encode()), ...)
    with pytest.raises(TokenfeedError, match="cannot be the name"):
        download("hf://owner/name", tmp_path)


@pytest.mark.parametrize("address", ["/a%00b_{0..1}", f"/{'x' * 300}_{{0..1}}"])
def test_addresses_of_names_that_no_file_can_have(hub, tmp_path, address):
    with pytest.raises(TokenfeedError):
        download(hub.url(address), tmp_path)
    with pytest.raises(TokenfeedError):
        download(f"hf://owner/name/{'x' * 300}")


@pytest.mark.parametrize("text", ["hf://owner", "hf://../x y", "nothing", "ftp://host/a_{0..1}", "https://host/a.txt"])
def test_what_names_no_dataset(tmp_path, text):
    with pytest.raises(ArgumentError):
        download(text, tmp_path)


def test_no_secret_is_shown(hub, tmp_path, capfd):
    """Not in reasons, tracebacks or files, even if the server repeats what it was sent."""
    login, query = "someone:passw0rd", "X-Signature=ABCDEF123456&token=tttttttt"
    echo = f"<html>{TOKEN} {login} /x?{query} passw0rd ABCDEF123456".encode()
    scripts = [
        [Status(500), ...],
        [Status(404)],
        [Status(200, {"Content-Type": "text/html"}, echo)],
        [Status(200, {}, echo), ...],
        [Stall(100), ...],
        [Break(100), ...],
        [Status(302, {"Location": f"http://127.0.0.1:1/y?{query}"}), ...],
        [],
    ]
    for number, script in enumerate(scripts):
        hub.put(f"/s{number}.parquet", make_file(1), *script)
    address = hub.url("/s{0..7}.parquet", login=login) + f"?{query}"
    done = get(address, tmp_path / "data", timeout=1.0)
    assert len(done.failed) == 7
    assert all(request.query == query for request in hub.asked("/s0.parquet"))
    basic = "Basic " + base64.b64encode(login.encode()).decode()
    assert {request.headers["Authorization"] for request in hub.requests} == {basic}

    command = subprocess.run(
        [COMMAND, "--debug", "download", address, "-o", tmp_path / "data", "--timeout", "1"],
        capture_output=True,
        text=True,
    )
    assert command.returncode == 1
    wrong = subprocess.run(
        [COMMAND, "--debug", "download", address.replace("{0..7}", "")], capture_output=True, text=True
    )
    assert "Traceback" in wrong.stderr
    shown = [*done.failed.values(), repr(done), command.stdout, command.stderr, wrong.stderr.replace("\n", "")]
    shown += [path.read_text("latin-1") for path in (tmp_path / "data").iterdir() if path.suffix == ".json"]
    for text in shown:
        for secret in (TOKEN, "passw0rd", "ABCDEF123456", "tttttttt", basic):
            assert secret not in text


def test_the_token_of_a_login(hub, tmp_path, monkeypatch):
    """`hf auth login` keeps it in a file."""
    monkeypatch.delenv("HF_TOKEN")
    (tmp_path / "token").write_text(TOKEN)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "token"))
    hub.put_repository("owner/name", FILES)
    assert download("hf://owner/name", tmp_path / "folder", count=1).ok
    (request, *_) = hub.asked("/api/datasets/owner/name/tree/main")
    assert request.headers["Authorization"] == f"Bearer {TOKEN}"
