"""What all commands have in common: help with an example, errors in one block, completion."""

import ast
import os
import pty
import re
import subprocess
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
from typer.main import get_command

import tokenfeed
from command_line import COMMAND, run, run_process
from golden import golden_tokenizer
from tokenfeed.cli import _list_flags, app
from tokenfeed.cli.console import _in_flags
from tokenfeed.errors import NotAStoreError
from tokenfeed.ui.messages import Query
from tokenfeed.ui.runs import find_sightings, trace_step
from tokenfeed.ui.subject import open_subject

COMMANDS = sorted(get_command(app).commands)


def invoke(*arguments):
    """The help of a command, without the price of a process for each."""
    from typer.testing import CliRunner

    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200"})


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(command):
    done = invoke(command, "--help")
    assert done.exit_code == 0
    (example,) = [line.strip() for line in done.output.splitlines() if line.strip().startswith("Example:")]
    assert example.startswith(f"Example: tokenfeed {command} ") or example == f"Example: tokenfeed {command}"


@pytest.mark.parametrize("command", COMMANDS)
def test_examples_use_options_that_there_are(command):
    """Every option of an example is in the help above it."""
    output = invoke(command, "--help").output
    above, example = output.split("Example:")
    options = [word for word in example.split() if word.startswith("-")]
    assert all(option in above.split() or f"{option}," in above for option in options)


def test_help_names_every_command():
    output = invoke("--help").output
    assert all(command in output for command in COMMANDS)


def test_version():
    done = run_process("--version")
    assert (done.returncode, done.stdout) == (0, f"tokenfeed {version('tokenfeed')}\n")


@pytest.mark.parametrize(
    "arguments", [("inspect", "nothing" + "/nothing" * 20), ("inspect", "store", "--no-such"), ("inspct",)]
)
def test_errors_are_plain_text_in_a_pipe_and_a_box_in_a_terminal(arguments):
    done = run_process(*arguments, COLUMNS="80", TERM="xterm")
    assert (done.returncode, done.stdout) == (2, "")
    assert not re.search("[\u2500-\u257f\x1b]", done.stderr)
    told = done.stderr.splitlines()[-1]  # in one line, however long
    assert told.startswith(("NotAStoreError: there is no file or folder", "Error: No such"))
    control, terminal = pty.openpty()
    environment = {**os.environ, "COLUMNS": "80", "TERM": "xterm"}
    process = subprocess.Popen([COMMAND, *arguments], stderr=terminal, stdin=terminal, env=environment)
    assert process.wait(60) == 2
    seen = os.read(control, 1 << 16).decode()
    for file in (control, terminal):
        os.close(file)
    assert "╭─" in seen
    assert "\x1b[31m" in seen  # the box is red


def test_debug_may_stand_anywhere(tmp_path):
    for arguments in (("--debug", "inspect", tmp_path), ("inspect", tmp_path, "--debug")):
        done = run(*arguments)
        assert done.returncode != 0
        assert "Traceback" in done.stderr
        assert "NotAStoreError" in done.stderr


# A package put first on the path, whose import fails in a way nobody foresaw.
BROKEN = """
raise RuntimeError("it broke at https://me:pass-word@host/a?X-Amz-Signature=abcdef&b=2 today")
"""


@pytest.mark.parametrize(("package", "status"), [("pyarrow", 3), ("rustbpe", 2)])
def test_what_nobody_foresaw_ends_with_status_3_and_shows_no_secret(tmp_path, package, status):
    """Of a worker process it is a WorkerError, with status 2."""
    (tmp_path / "ways").mkdir()
    (tmp_path / "ways" / f"{package}.py").write_text(BROKEN)
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    data = tmp_path / "a.jsonl"
    if package == "pyarrow":
        data = tmp_path / "a.parquet"
        data.write_bytes(b"PAR1PAR1PAR1")
    arguments = ("train-tokenizer", data, "-o", tmp_path / "out")
    done = run_process(*arguments, PYTHONPATH=f"{tmp_path / 'ways'}:{os.environ.get('PYTHONPATH', '')}")
    assert done.returncode == status, done.stderr
    assert "Unexpected RuntimeError" in done.stderr or "WorkerError" in done.stderr
    assert "it broke at https://…host/a?… today" in done.stderr
    assert "Traceback" not in done.stderr
    for secret in ("pass-word", "abcdef"):
        assert secret not in done.stderr + done.stdout
    assert "Traceback" in run_process(*arguments, "--debug", PYTHONPATH=str(tmp_path / "ways")).stderr


def told(*arguments):
    """The words of an error."""
    done = run(*arguments)
    assert done.returncode == 2, done
    return done.stderr


def test_errors_speak_in_flags(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"body": "a"}\n')
    golden_tokenizer().save(tmp_path / "tokenizer")
    words = told("prepare", tmp_path / "a.jsonl", "-o", tmp_path / "out", "--tokenizer", tmp_path / "tokenizer")
    assert "--text-column …" in words
    assert "text_column" not in words
    words = told(
        "train-tokenizer", tmp_path / "a.jsonl", "-o", tmp_path / "new", "--text-column", "body", "--val", "2.5"
    )
    assert words.startswith("ArgumentError: ")
    assert "--val" in words
    assert "val=" not in words


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ("name it: text_column='body'", "name it: --text-column body"),
        ("val is 7; it must be a share", "--val is 7; it must be a share"),
        ("say where: stores={'': path}, length=3, eos=None", "say where: stores={'': path}, length=3, eos=None"),
        ("give dtype='uint16' or 'uint32'", "give --dtype uint16 or 'uint32'"),
        ("bos=… (--bos) before; or separator=None (--no-separator)", "--bos … before; or --no-separator"),
        ("val=None, val='last', replace_changed=True", "--val none, --val last, --replace-changed"),
        ("val=['a-*', 'b.x'], or val=()", "--val 'a-*' --val b.x, or --val all-data"),
        (
            "workers=0 works in one process. the path is /a?part=3",
            "--workers 0 works in one process. the path is /a?part=3",
        ),
        ("store is a store; prepare into another", "store is a store; prepare into another"),
        ("the length is 3, and Permutation(n=3)", "the length is 3, and Permutation(n=3)"),
    ],
)
def test_names_of_options_become_flags(message, told):
    assert _in_flags(message, _list_flags(["prepare"])) == told


ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.py")]
SCRIPTS = [*ROOT.glob("src/**/*.js")]
MODULES = [*ROOT.glob("src/**/*.py")]
GENERAL = {"--debug", "--version", "--help", "--install-completion"}
OPTIONS = {
    name: GENERAL.union(*(option.opts + option.secondary_opts for option in command.params))
    for name, command in get_command(app).commands.items()
}
OF_OTHERS = {
    "--nproc-per-node",
    "--training.seq_len",
    "--resume",
    "--lanes",
    "--max-seq-len",
    "--demand",
    "--dataloader-type",
}
"""Of torchrun, torchtitan, litgpt, nanochat, Megatron, a benchmark and an example."""


def read_strings(module):
    """Its strings, with X for what is filled in."""
    nodes = list(ast.walk(ast.parse(module.read_text())))
    joined = [node.values for node in nodes if isinstance(node, ast.JoinedStr)]
    whole = [[node] for node in nodes if isinstance(node, ast.Constant) and not any(node in parts for parts in joined)]
    for parts in joined + whole:
        yield "".join(str(each.value) if isinstance(each, ast.Constant) else "X" for each in parts)


def find_wrong(text, *, prose=r"^(--[a-z][\w.-]*)"):
    """Commands that do not exist, or lack their options; and options, named alone, that no command has."""
    blocks = re.findall(r"^```(?:sh|text)[^\n]*\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL).replace("\\`", "`")
    spans = re.findall(r"`([^`\n]+)`", text)
    wrong = []
    for line in [*spans, *(line.strip() for block in blocks for line in block.replace("\\\n", "").splitlines())]:
        if command := re.match(r"(?:[A-Z_]+=\S+ )?tokenfeed ([a-z][a-z-]*)([^#|]*)", line):
            options = re.findall(r"(?<!\S)--[a-z][\w-]*", command[2])
            wrong += [line] if set(options) - OPTIONS.get(command[1], set()) or command[1] not in OPTIONS else []
    alone = [found for part in [*spans, re.sub(r"`[^`]*`", "", text)] for found in re.findall(prose, part)]
    return wrong + [each for each in alone if each not in OF_OTHERS.union(*OPTIONS.values())]


def test_every_command_and_option_that_is_named_exists():
    """In documentation, help and messages."""
    found = {path: find_wrong(path.read_text()) for path in [*PAGES, *SCRIPTS]}
    anywhere = r"^(?!aws|wsl).*?(?<![\w-])(--[a-z][\w-]*\w)"
    found |= {
        path: [each for text in read_strings(path) for each in find_wrong(text, prose=anywhere)] for path in MODULES
    }
    assert {str(path.relative_to(ROOT)): wrong for path, wrong in found.items() if wrong} == {}
    assert len(find_wrong("`tokenfeed lance`, `tokenfeed serve --rank 3`, `--curriculum`, `aws --profile x`")) == 3


def test_a_command_advises_what_it_has(tmp_path):
    """Of a run whose data was moved, and of data that needs options: those of this very command."""
    for name in ("store", "other"):
        with tokenfeed.Writer(tmp_path / name, columns={"tokens": "u2"}, spans={"documents": "json"}) as writer:
            writer.append({"tokens": np.arange(500)}, documents={})
    with tokenfeed.Loader(tokenfeed.open(tmp_path / "store").windows(16), 2, run=tmp_path / "run.jsonl") as loader:
        next(loader)
    run_path, moved = tmp_path / "run.jsonl", tmp_path / "moved"
    (tmp_path / "store").rename(moved)
    page = open_subject(str(run_path))
    with pytest.raises(NotAStoreError) as refused:
        trace_step(page, Query({"step": "0"}))
    words = {"trace": told("trace", run_path, "--step", 0), "find": told("find", run_path, "--document", 0)}
    for command, said in {**words, "serve": str(refused.value)}.items():
        assert ("stores=" if command == "serve" else "--store") in said  # the page speaks as the library does
        assert set(re.findall(r"--[a-z-]+", said)) <= OPTIONS[command], said
    for stores in (None, {"": str(moved)}):
        page = open_subject(str(run_path), stores=stores)
        assert page.describe()["has_store"] is (stores is not None)
    assert trace_step(page, Query({"step": "0"}))["rows"][0]["documents"]
    assert find_sightings(page, Query({"document": "0"}))["total"]
    assert run("serve", run_path, "--store", "x=y", "--no-open", "--tokenizer", tmp_path / "none").returncode == 2


def test_a_run_that_does_not_publish(store_path, tmp_path):
    view = tokenfeed.open(store_path).windows(8)
    with tokenfeed.Loader(view, 2, rank=0, world_size=1, run=tmp_path / "run.jsonl") as loader:
        next(loader)
    words = told("top", tmp_path / "run.jsonl")
    assert 'observe.publish(loader, "run.stats.jsonl")' in words
    assert "does not publish" in words


def test_verify_is_advised_for_what_it_checks_alone(store_path, tmp_path):
    """For a damaged store it names the file. It refuses text, and has nothing to add about files of others."""
    column = store_path / "part-00000" / "tokens.npy"
    os.truncate(column, 1000)
    assert "`tokenfeed verify` names every damaged file of the store" in told("inspect", store_path)
    assert str(column) in "".join(run("verify", store_path).stdout.split())
    (tmp_path / "a.parquet").write_bytes(b"PAR1 {broken")
    assert "tokenfeed verify" not in told("train-tokenizer", tmp_path / "a.parquet", "-o", tmp_path / "out")
    (tmp_path / "a.ds").write_bytes(bytes(12))
    (tmp_path / "a.ds.metadata").write_text("tokenizer|2\n7\n")
    assert "tokenfeed verify" not in told("inspect", tmp_path / "a.ds")


def test_commands_are_completed():
    done = run_process(_TOKENFEED_COMPLETE="complete_bash", COMP_WORDS="tokenfeed in", COMP_CWORD="1")
    assert done.stdout.split() == ["inspect"]
    done = run_process(_TOKENFEED_COMPLETE="complete_bash", COMP_WORDS="tokenfeed pack --len", COMP_CWORD="2")
    assert done.stdout.split() == ["--length"]
