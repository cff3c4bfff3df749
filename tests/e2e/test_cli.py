"""The commands, as a user types them."""

import json
import re
from types import SimpleNamespace

import numpy as np
import pytest

import tokenfeed
from command_line import run, run_process
from golden import golden_texts, golden_tokenizer, golden_vocabulary
from tokenfeed.errors import ArgumentError
from tokenfeed.store.sealing import load_manifest
from tokenfeed.ui.subject import open_subject


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
    items, spans = described["sample"]["items"], {each["table"]: each for each in described["sample"]["spans"]}
    assert (described["sample"]["number"], items["start"], items["stop"]) == (5, 80, 96)
    assert {each["name"]: each["values"] for each in items["columns"]}["tokens"] == plain.tokens[80:96].tolist()
    start, stop, payload = plain.table("documents")[5]
    assert spans["documents"] == {"table": "documents", "start": start, "stop": stop, "payload": payload}
    assert all(re.fullmatch("[a-z][a-z0-9_]*", key) for key in keys_of(described | {"provenance": {}}))


def keys_of(value):
    """Names of fields, without those of payloads."""
    if isinstance(value, dict):
        return [*value, *(key for name in value if name != "payload" for key in keys_of(value[name]))]
    return [key for each in value for key in keys_of(each)] if isinstance(value, list) else []


def test_inspect_refuses_a_sample_that_is_not_there(store_path):
    assert "sample 1000000000 is outside" in run("inspect", store_path, "--sample", 10**9).stderr


def test_inspect_lists_versions(tmp_path):
    for tokens in ([1, 2], [3]):
        with tokenfeed.Writer(tmp_path, mode="append", columns={"tokens": "u2"}) as writer:
            writer.append({"tokens": tokens})
    identities = [tokenfeed.open(tmp_path, version=number).identity for number in (1, 2)]
    shown = run("inspect", tmp_path).stdout
    assert all(identity in shown for identity in identities)
    described = json.loads(run("inspect", tmp_path, "--version", 1, "--json").stdout)
    assert (described["version"], described["num_items"], described["identity"]) == (1, 2, identities[0])
    assert [each["items"] for each in described["versions"]] == [2, 3]


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


HOSTILE = "\x1b]0;owned\x07\x9b31m \u202e[/x]"


def is_harmless(text):
    return not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", text)


@pytest.fixture
def hostile(tmp_path):
    """A store whose payload and whose codec talk to the terminal, and to Rich."""
    codec = SimpleNamespace(name="[/x]", encode=str.encode, decode=lambda data: bytes(data).decode())
    path = tmp_path / "store"
    with tokenfeed.Writer(path, columns={"tokens": "uint16"}, spans={"documents": "utf8", "notes": codec}) as writer:
        writer.append({"tokens": np.arange(40)}, documents=HOSTILE, notes=HOSTILE)
    return path


def test_text_of_others_reaches_no_terminal_as_it_is(hostile, tmp_path):
    done = run("inspect", hostile)
    assert done.returncode == 0, done.stderr
    assert "[/x]" in done.stdout
    assert "\\u001b]0;owned\\u0007\\u009b31m \\u202e[/x]" in done.stdout
    for arguments in (
        ("inspect", hostile),
        ("inspect", hostile, "--json"),
        ("verify", hostile),
        ("inspect", tmp_path / f"no{HOSTILE}"),
        ("pack", hostile, "--length", 8, "--table", HOSTILE),
    ):
        done = run(*arguments)
        assert is_harmless(done.stdout + done.stderr), arguments
    assert json.loads(run("inspect", hostile, "--json").stdout)["sample"]["spans"][0]["payload"] == HOSTILE


def test_a_damaged_file_with_a_hostile_name_is_told_harmlessly(hostile):
    (hostile / f"evil{chr(27)}[31m").mkdir()
    (shard,) = [path for path in hostile.iterdir() if (path / "tokens.npy").exists()]
    shard.joinpath("tokens.npy").write_bytes(b"")
    done = run("verify", hostile)
    assert done.returncode == 1
    assert is_harmless(done.stdout + done.stderr)


def test_tokens_are_shown_as_text_and_nothing_is_cut_at_80_columns(tmp_path):
    tokenizer = golden_tokenizer()
    tokenizer.save(tmp_path / "tokenizer")
    payload = {"url": "https://example.org/" + "/".join(f"part-{number}" for number in range(20))}
    text = golden_texts()[0][:300]
    with tokenfeed.Writer(
        tmp_path / "store",
        columns={"tokens": "uint16"},
        spans={"documents": "json"},
        name="a-shard-with-a-long-name" * 3,
    ) as writer:
        writer.append({"tokens": tokenizer.encode(text)}, documents=payload)
    done = run("inspect", tmp_path / "store", "--tokenizer", tmp_path / "tokenizer", width=80)
    assert max(map(len, done.stdout.splitlines())) <= 80
    flowing = "".join(done.stdout.split())
    assert "".join(text[:100].split()) in flowing
    assert payload["url"] in flowing
    view = tokenfeed.open(tmp_path / "store").windows(16)
    with tokenfeed.Loader(view, 2, rank=0, world_size=1, run=tmp_path / "run.jsonl") as loader:
        next(loader)
    done = run("trace", tmp_path / "run.jsonl", "--step", 0, "--tokenizer", tmp_path / "tokenizer", width=80)
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80
    flowing = "".join(done.stdout.split())
    assert "a-shard-with-a-long-name" * 3 in flowing
    assert "https://example.org/part-0/part-1" in flowing
    first = tokenizer.decode(view[int(tokenfeed.Run(tmp_path / "run.jsonl").trace(0)[0].index)].tokens)
    assert "".join(repr(first).split())[:40] in flowing


def test_another_tokenizer_than_that_of_the_data_is_refused(tmp_path):
    """It showed nonsense, without a word."""
    tokenizer = golden_tokenizer()
    other = tokenfeed.Tokenizer(golden_vocabulary("gpt2"))
    tokenizer.save(tmp_path / "right")
    other.save(tmp_path / "wrong")
    with tokenfeed.Writer(tmp_path / "store", columns={"tokens": "uint16"}, tokenizer=tokenizer.identity()) as writer:
        writer.append({"tokens": tokenizer.encode(golden_texts()[0])})
    with tokenfeed.Loader(tokenfeed.open(tmp_path / "store").windows(16), 2, run=tmp_path / "run.jsonl") as loader:
        next(loader)
    for arguments in (("inspect", tmp_path / "store"), ("trace", tmp_path / "run.jsonl", "--step", 0)):
        assert run(*arguments, "--tokenizer", tmp_path / "right").returncode == 0
        refused = run(*arguments, "--tokenizer", tmp_path / "wrong")
        assert refused.returncode != 0
        assert "was made with another tokenizer" in " ".join(refused.stderr.split())
    for path in ("store", "run.jsonl"):
        open_subject(str(tmp_path / path), tokenizer=str(tmp_path / "right"))
        with pytest.raises(ArgumentError, match=rf"another tokenizer.* {tokenizer.digest}, .*{other.digest}"):
            open_subject(str(tmp_path / path), tokenizer=str(tmp_path / "wrong"))


def test_one_of_a_thing_is_said_in_the_singular(tmp_path):
    with tokenfeed.Writer(tmp_path / "store", columns={"tokens": "uint16"}, spans={"documents": "json"}) as writer:
        writer.append({"tokens": np.arange(20)}, documents={})
    told = run("verify", tmp_path / "store").stdout + run("pack", tmp_path / "store", "--length", 32).stdout
    assert "1 shard," in told
    assert "1 row of" in told
    assert not re.search(r"\b1 (shards|rows|spans|files|documents|problems)\b", told)


def test_seal_and_combine(tmp_path):
    for name in ("a", "b"):
        with tokenfeed.Writer(tmp_path / name, columns={"tokens": "u2"}, seal=False) as writer:
            writer.append({"tokens": [1, 2, 3]})
        assert load_manifest(tmp_path / name).shards is None
        done = run("seal", tmp_path / name)
        assert (done.returncode, "is sealed: 1 shard, 3 items" in done.stdout) == (0, True), done
        assert len(load_manifest(tmp_path / name).shards) == 1
    done = run("combine", tmp_path / "a", tmp_path / "b", "-o", tmp_path / "both")
    assert (done.returncode, "combines 2 stores: 2 shards, 6 items" in done.stdout) == (0, True), done
    assert tokenfeed.open(tmp_path / "both").num_items == 6
    assert json.loads(run("seal", tmp_path / "a", "--json").stdout)["items"] == 3
    again = run("combine", tmp_path / "a", "-o", tmp_path / "both")
    assert (again.returncode, "already holds a store" in again.stderr) == (2, True)
    assert "combined store, which has no shards to seal" in run("seal", tmp_path / "both").stderr
