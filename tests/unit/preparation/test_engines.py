"""Engines: errors that travel, workers that keep to themselves."""

import json
import multiprocessing
import os
import subprocess
import sys
import threading

import pytest

import tokenfeed
from golden import golden_tokenizer
from preparing import make_documents, write_jsonl
from tokenfeed.errors import ArgumentError, CorruptionError, FormatError, ReadError, WorkerError, WriteError
from tokenfeed.preparation.engines import Failure


class AwkwardError(Exception):
    """Cannot be unpickled: it takes two arguments, and hands on one."""

    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


def travelled(error):
    try:
        raise error
    except Exception as raised:  # noqa: BLE001
        failure = Failure.of(raised)
    here, there = multiprocessing.Pipe()
    with here, there:
        here.send(failure)
        return there.recv().rebuild()


@pytest.mark.parametrize(
    "error",
    [
        ReadError("cannot read it", filename="a/b", errno=5),
        WriteError("no room", filename="c", errno=28),
        CorruptionError("line 5 is bad"),
        ArgumentError("what?"),
        ZeroDivisionError("by zero"),
        KeyError("key"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_travel(error):
    made = travelled(error)
    assert type(made) is type(error)
    assert str(made) == str(error)
    assert getattr(made, "errno", None) == getattr(error, "errno", None)
    assert getattr(made, "filename", None) == getattr(error, "filename", None)
    assert "in travelled" in made.__notes__[0]


def test_errors_that_cannot_travel_are_told():
    class LocalError(Exception):
        pass

    for error in (AwkwardError(1, 2), LocalError("only here")):
        made = travelled(error)
        assert isinstance(made, WorkerError)
        assert type(error).__name__ in str(made)
        assert str(error) in str(made)


def test_what_a_function_prints_is_not_in_the_report(tmp_path):
    """A worker's standard output is standard error."""
    write_jsonl(tmp_path / "text.jsonl", make_documents(3))
    golden_tokenizer("tiktoken").save(tmp_path / "tokenizer")
    (tmp_path / "mine.py").write_text(
        "from tokenfeed.preparation import annotates\n"
        "@annotates()\n"
        "def annotate(text, kept, tokens):\n"
        "    print('hello from', len(text))\n"
        "    return {}\n"
    )
    code = "import sys, tokenfeed; tokenfeed.prepare('text.jsonl', 'store', tokenizer='tokenizer', workers=1,"
    code += " map='mine.py:annotate'); print('done')"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    assert done.stderr.count("hello from") == 3


def test_threads_stop_at_an_error(tmp_path):
    """Which names the line and the slice; what other threads had begun is left, and made again by the next run."""
    lines = [json.dumps(document) for document in make_documents(60)]
    (tmp_path / "text.jsonl").write_text("\n".join([*lines[:50], "{", *lines[50:]]))
    options = {"tokenizer": golden_tokenizer(), "workers": 3, "slice_bytes": 2000}
    before = set(threading.enumerate())
    with pytest.raises(FormatError, match="line") as failed:
        tokenfeed.prepare(tmp_path / "text.jsonl", tmp_path / "store", **options)
    assert "while slice" in failed.value.__notes__[0]
    assert set(threading.enumerate()) <= before
    report = tokenfeed.prepare(tmp_path / "text.jsonl", tmp_path / "store", on_error="skip", **options)
    assert report.total.documents == 60
    assert report.is_complete


@pytest.mark.parametrize("engine", ["local", "processes"])
def test_no_descriptor_and_no_thread_stays_behind(tmp_path, engine):
    write_jsonl(tmp_path / "text.jsonl", make_documents(20))
    options = {"tokenizer": golden_tokenizer(), "workers": 2, "slice_bytes": 2000, "engine": engine}
    tokenfeed.prepare(tmp_path / "text.jsonl", tmp_path / "first", **options)
    descriptors, threads = len(os.listdir("/dev/fd")), set(threading.enumerate())
    tokenfeed.prepare(tmp_path / "text.jsonl", tmp_path / "second", **options)
    assert len(os.listdir("/dev/fd")) <= descriptors
    assert set(threading.enumerate()) <= threads
