"""`tokenfeed prepare`, as a user types it; to S3 and from there."""

import json
import subprocess

import pytest
from typer.testing import CliRunner

import tokenfeed
from command_line import COMMAND, run, run_process
from golden import golden_tokenizer
from preparing import contents, expected_tokens, jsonl, make_documents, picture, write_inputs
from servers import SECRET, s3_server
from tokenfeed.cli import app
from tokenfeed.errors import ArgumentError, NotFoundError
from tokenfeed.storage import objects
from tokenfeed.store.verify import verify


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    documents = write_inputs(folder / "in", 90)
    golden_tokenizer("tiktoken").save(folder / "tokenizer")
    return folder, documents


def test_the_command(text, tmp_path):
    """Text to a store that other commands read: dry run, run, rerun, verify, inspect."""
    folder, documents = text
    store = tmp_path / "store"
    arguments = ["prepare", folder / "in", "-o", store, "--tokenizer", folder / "tokenizer", "--keep", "url"]
    arguments += ["--keep", "score", "--val", "none", "-w", 2]
    done = run(*arguments, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "3 slices" in done.stdout
    assert not store.exists()
    done = run_process(*arguments)
    assert done.returncode == 0, done.stderr
    assert "complete and sealed" in done.stdout
    assert f"{len(documents):,}" in done.stdout
    assert [tokens for tokens, _ in contents(store)] == expected_tokens(documents)
    report = json.loads(run(*arguments, "--json").stdout)
    assert (report["made"], report["slices"], report["is_complete"]) == (0, 3, True)
    assert report["total"]["documents"] == len(documents)
    assert verify(store).ok
    assert tokenfeed.open(store).num_items == report["total"]["tokens"]


def test_errors_are_told_in_one_block(text, tmp_path):
    folder, _ = text
    tokenizer = ["--tokenizer", folder / "tokenizer"]
    (tmp_path / "bad.jsonl").write_bytes(jsonl(make_documents(3)) + b"[1, 2]\n")
    bad = ["prepare", tmp_path / "bad.jsonl", "-o", tmp_path / "store", *tokenizer, "-w", 1]
    done = run(*bad)
    assert (done.returncode, "FormatError" in done.stderr, "Traceback" in done.stderr) == (2, True, False)
    assert "line 4" in done.stderr
    done = run(*bad, "--on-error", "skip")
    assert done.returncode == 0, done.stderr
    assert "line 4" in done.stdout
    for arguments in (
        [tmp_path / "nothing"],
        [folder / "in", "--part", "3"],
        [folder / "in", "--on-error", "perhaps"],
        [folder / "in", "--bos", "<|bos|>", "--no-separator"],
        [folder / "in", "--map", "nowhere"],
    ):
        command = ["prepare", *arguments, "-o", tmp_path / "other", *tokenizer]
        error = CliRunner().invoke(app, [str(one) for one in command]).exception  # which `main` shows as such a block
        assert isinstance(error, ArgumentError | NotFoundError), error


def test_parts_as_array_jobs(text, tmp_path):
    """Two at once, on one store: the last to end seals it."""
    folder, _ = text
    command = [
        COMMAND,
        "prepare",
        folder / "in",
        "--tokenizer",
        folder / "tokenizer",
        "-w",
        "0",
        "--val",
        "0.1",
    ]
    tokenfeed.prepare(folder / "in", tmp_path / "whole", tokenizer=folder / "tokenizer", workers=0, val=0.1)
    parts = [
        subprocess.Popen([*command, "-o", tmp_path / "parts", "--part", f"{number}/2"], stdout=subprocess.PIPE)
        for number in range(2)
    ]
    output = [" ".join(part.communicate()[0].decode().split()) for part in parts]  # lines are wrapped
    assert [part.returncode for part in parts] == [0, 0]
    assert any("complete and sealed" in one for one in output)
    assert picture(tmp_path / "parts") == picture(tmp_path / "whole")


def test_to_s3_and_from_s3(text, tmp_path, monkeypatch):
    """The same bytes as in a local folder, by workers and after one of them was interrupted; no secret anywhere."""
    folder, _ = text
    tokenfeed.prepare(folder / "in", tmp_path / "local", tokenizer=folder / "tokenizer", workers=0, slice_bytes=20_000)
    with s3_server() as server:
        server.use(monkeypatch)
        write_inputs(tmp_path / "in", 90)
        server.put(tmp_path / "in", under="in")
        options = {"tokenizer": folder / "tokenizer", "slice_bytes": 20_000}
        first = tokenfeed.prepare(folder / "in", "s3://bucket/store", workers=0, part=(0, 2), **options)
        assert not first.is_complete
        objects.delete("s3://bucket/store/.prepare/slices/000000-000000.json")  # committed, but not recorded
        report = tokenfeed.prepare(folder / "in", "s3://bucket/store", workers=2, **options)
        assert report.is_complete
        assert report.made == report.num_slices - first.made + 1
        assert tokenfeed.prepare(folder / "in", "s3://bucket/store", workers=0, **options).made == 0
        server.get("store", tmp_path / "there")
        assert picture(tmp_path / "there") == picture(tmp_path / "local")
        assert verify("s3://bucket/store").ok
        remote = tokenfeed.prepare("s3://bucket/in", tmp_path / "from", workers=2, **options)
        assert remote.is_complete
        assert contents(tmp_path / "from") == contents(tmp_path / "local")
    assert all(SECRET.encode() not in data for data in picture(tmp_path / "from").values())
