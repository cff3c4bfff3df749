"""The commands, as a user types them."""

import json

import numpy as np
import pytest

import tokenfeed
from command_line import run, run_process


def test_inspect(store_path, plain):
    done = run("inspect", store_path)
    assert done.returncode == 0, done.stderr
    for text in (f"{len(plain.tokens):,}", "uint16", "uint8 × (2, 3)", "json", "msgpack", "Span 0 of documents"):
        assert text in done.stdout
    described = json.loads(run("inspect", store_path, "--json", "--sample", "5").stdout)
    assert described["num_items"] == len(plain.tokens)
    assert described["num_bytes"] == sum(
        path.stat().st_size for path in store_path.rglob("*") if path.suffix in (".npy", ".bin")
    )
    assert described["samples"]["Span 5 of documents"]["payload"] == (
        "none" if plain.documents[5].payload is None else plain.documents[5].payload
    )


def test_inspect_a_foreign_file(tmp_path):
    np.arange(100, dtype="<u2").tofile(tmp_path / "train.bin")
    described = json.loads(run("inspect", tmp_path / "train.bin", "--eos", 9, "--json").stdout)
    assert described["num_items"] == 100
    assert described["spans"][0]["spans"] == 2


def test_inspect_an_empty_store(tmp_path):
    tokenfeed.Writer(tmp_path, columns={"tokens": "u1"}, spans={"documents": "json"}).close()
    assert run("inspect", tmp_path).returncode == 0
    assert run("verify", tmp_path).returncode == 0


def test_verify(store_path):
    done = run_process("verify", store_path)
    assert done.returncode == 0
    assert "has no problems" in done.stdout
    file = store_path / "part-00001" / "tokens.npy"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    assert run("verify", store_path, "--quick").returncode == 0
    done = run("verify", store_path)
    assert done.returncode == 1
    assert "part-00001/tokens.npy: checksum is" in done.stdout
    report = json.loads(run("verify", store_path, "--json").stdout)
    assert not report["ok"]
    assert len(report["problems"]) == 1


@pytest.mark.parametrize("command", ["inspect", "verify"])
def test_nothing_there(tmp_path, command):
    done = run(command, tmp_path / "nothing")
    assert done.returncode in (1, 2)
    assert "nothing" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_errors_are_one_block_and_tracebacks_on_request(tmp_path):
    done = run_process("inspect", tmp_path)
    assert done.returncode == 2
    assert "NotAStoreError" in done.stderr
    assert "Traceback" not in done.stderr
    assert "Traceback" in run("--debug", "inspect", tmp_path).stderr
