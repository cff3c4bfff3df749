"""`tokenfeed pack`, as a user types it."""

import json

import tokenfeed
from command_line import run, run_process


def test_pack(store_path, plain, tmp_path):
    done = run_process("pack", store_path, "--length", 64)
    assert done.returncode == 0, done.stderr
    view = tokenfeed.open(store_path).packed(64)
    assert f"{len(view):,} rows of 64 + 1 items" in done.stdout
    assert "% filled" in done.stdout
    assert str(store_path / ".packed-documents-64") in done.stdout.replace("\n", "")
    report = json.loads(
        run("pack", store_path, "--length", 30, "--table", "concepts", "--cache", tmp_path / "mine", "--json").stdout
    )
    assert report["folder"] == str(tmp_path / "mine")
    assert report["items"] == len(plain.tokens)
    assert report["rows"] == len(tokenfeed.open(store_path).packed(30, table="concepts", cache=tmp_path / "mine"))


def test_what_cannot_be_packed(store_path):
    assert run("pack", store_path).returncode == 2
    assert run("pack", store_path, "--length", 0).returncode == 2
    done = run("pack", store_path, "--length", 10, "--table", "nothing")
    assert done.returncode == 2
    assert "no span table 'nothing'" in done.stderr
    assert "Traceback" not in done.stderr
