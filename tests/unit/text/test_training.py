"""Training: what nanochat learns from the same text, whatever way the text comes."""

import json
import random
import signal
import subprocess
import sys

import psutil
import pytest
from typer.testing import CliRunner

from command_line import COMMAND, run
from golden import GOLDEN, golden_texts, golden_vocabulary
from tokenfeed.cli import app
from tokenfeed.errors import ArgumentError, DependencyError, TokenfeedError
from tokenfeed.text.tokenizer.tokenizer import Tokenizer
from tokenfeed.text.tokenizer.vocabulary import NANOCHAT_SPECIAL_TOKENS, PATTERNS


def learnt(texts, vocab_size=300, **options):
    return Tokenizer.train(texts, vocab_size, special_tokens=("<s>",), bos="<s>", **options).vocabulary


def test_nanochat_learns_the_same():
    """The train split in order, each document cut to 10,000 characters, 4,096 tokens."""
    texts = golden_texts(train_only=True)
    tokenizer = Tokenizer.train(iter(texts), 4096, doc_cap=10_000, max_chars=2_000_000_000)
    assert tokenizer.vocabulary == golden_vocabulary()
    assert tokenizer.bos_id == 4087
    assert tuple(tokenizer.vocabulary.special_tokens) == NANOCHAT_SPECIAL_TOKENS


def test_by_command(tmp_path):
    arguments = ["train-tokenizer", str(GOLDEN / "data"), "-o", str(tmp_path), "--vocab-size", "4096", "--val", "last"]
    done = CliRunner().invoke(app, [*arguments, "--json"])
    assert done.exit_code == 0, done.output
    printed = json.loads(done.output)
    assert Tokenizer.load(tmp_path).vocabulary == golden_vocabulary()
    assert printed["digest"] == golden_vocabulary().digest
    assert printed["vocab_size"] == 4096
    assert 4 < printed["bytes_per_token"] < 6
    shown = CliRunner().invoke(app, [*arguments, "--overwrite"])
    assert "4,096" in shown.output
    assert isinstance(
        CliRunner().invoke(app, [*arguments, "--overwrite", "--text-column", "body"]).exception, TokenfeedError
    )


def test_nothing_is_overwritten_by_the_command(tmp_path):
    """Neither a tokenizer, nor is one put among files of text; both are refused before any work."""
    text, saved = tmp_path / "text", tmp_path / "saved"
    text.mkdir()
    (text / "a.txt").write_text("abab " * 99)
    arguments = ("train-tokenizer", text / "a.txt", "--vocab-size", "300", "--val", "none", "-o")
    assert run(*arguments, saved).returncode == 0
    before = (saved / "tokenizer.json").read_bytes()
    (text / "a.txt").write_text("xyxy " * 99)
    for out in (saved, saved / "tokenizer.json"):
        refused = run(*arguments, out)
        assert refused.returncode == 2
        assert "exists already" in refused.stderr
        assert "replace it with --overwrite" in refused.stderr
    refused = run(*arguments, text, "--overwrite")
    assert refused.returncode == 2
    assert "other things than a tokenizer, such as a.txt" in refused.stderr
    assert [path.name for path in text.iterdir()] == ["a.txt"]
    assert (saved / "tokenizer.json").read_bytes() == before
    assert run(*arguments, saved, "--overwrite").returncode == 0
    assert (saved / "tokenizer.json").read_bytes() != before


def test_a_document_counts_up_to_its_cap():
    assert learnt(["abab" * 9 + "xyxy" * 100], doc_cap=36) == learnt(["abab" * 9])
    assert learnt(["abab" * 9 + "xyxy" * 100]) != learnt(["abab" * 9])


def test_reading_stops_with_the_document_that_exceeds_the_limit():
    def read(max_chars):
        given = iter(["abcd", "efgh", "ijkl", "mnop"])
        learnt(given, max_chars=max_chars)
        return 4 - len(list(given))

    assert [read(limit) for limit in (1, 3, 4, 7, 8, 11, 15, 16, None)] == [1, 1, 2, 2, 3, 3, 4, 4, 4]


def test_fewer_pairs_than_asked_for():
    vocabulary = learnt(["ab ab ab"], 5000)
    assert vocabulary.ranks[b"ab"] == 256
    assert vocabulary.special_tokens == {"<s>": len(vocabulary.ranks)}
    assert vocabulary.size == len(vocabulary.ranks) + 1 < 300


def test_the_pattern_decides_what_is_merged():
    texts = ["1234567 " * 50]
    by_name = {name: learnt(texts, pattern=name) for name in PATTERNS}
    assert max(len(token) for token in by_name["nanochat"].ranks if token.isdigit()) == 2
    assert max(len(token) for token in by_name["gpt4"].ranks if token.isdigit()) == 3
    assert learnt(texts, pattern=r"[0-9]+|[^0-9]").pattern == r"[0-9]+|[^0-9]"


def test_texts_that_no_engine_would_take():
    """Lone surrogates, and a run that overflows the stack of the regular expressions."""
    texts = ["a\ud800b \ud83d\ude00", " " * 1_000_000 + "a", "a" * 300_000, ""]
    tokenizer = Tokenizer.train(texts, 300, special_tokens=(), bos=None)
    assert max(len(token) for token in tokenizer.vocabulary.ranks) == 65_536
    assert tokenizer.engine_name == "tokenfeed"
    assert tokenizer.decode(tokenizer.encode(texts[1])) == texts[1]


@pytest.mark.parametrize(
    ("texts", "options", "message"),
    [
        ("one text", {}, "texts is one str"),
        ([], {}, "texts is empty"),
        (["", ""], {}, "texts is empty"),
        (["a", None], {}, "text 1 is a NoneType"),
        (["a"], {"vocab_size": 256}, "256 bytes and 1 special tokens need at least 257"),
        (["a"], {"pattern": "("}, "not a regular expression"),
        (["a"], {"pattern": "llama"}, "there is no pattern 'llama'"),
        (["a"], {"doc_cap": 0}, "doc_cap is 0"),
        (["a"], {"max_chars": -1}, "max_chars is -1"),
    ],
)
def test_what_cannot_be_meant(texts, options, message):
    with pytest.raises(ArgumentError, match=message):
        learnt(texts, **options)


def test_special_tokens_that_cannot_be_meant():
    with pytest.raises(ArgumentError, match="twice"):
        Tokenizer.train(["a"], 300, special_tokens=("<s>", "<s>"), bos=None)
    with pytest.raises(ArgumentError, match=r"bos '<\|bos\|>' is not among"):
        Tokenizer.train(["a"], 300, special_tokens=("<s>",))


def test_rustbpe_is_asked_for(monkeypatch):
    monkeypatch.setattr("tokenfeed.text.tokenizer.training.find_spec", lambda name: None)
    with pytest.raises(DependencyError, match=r"pip install 'tokenfeed\[text\]'"):
        learnt(["a"])


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_what_stops_the_reading_comes_through(error):
    def texts():
        yield "a text"
        raise error

    with pytest.raises(error):
        learnt(texts())


def test_progress(monkeypatch, capsys):
    """Nothing on standard output; on standard error a line for a new stage, or a bar on a terminal."""
    learnt(["a text"], progress=True)
    assert capsys.readouterr() == ("", "merging  43 tokens from 0.0 M characters\n")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    learnt(["a text"], progress=True)
    out, err = capsys.readouterr()
    assert out == ""
    assert "merging  43 tokens" in err


def test_ctrl_c_ends_the_merging(tmp_path):
    """rustbpe is deaf to it; the command ends at once, saves nothing and leaves no process behind."""
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=9)) for _ in range(100_000)]
    (tmp_path / "text.txt").write_text(" ".join(words))
    command = [COMMAND, "train-tokenizer", tmp_path / "text.txt", "-o", tmp_path / "out"]
    options = ["--vocab-size", "60000", "--doc-cap", "10000000", "--val", "none"]
    process = subprocess.Popen([*command, *options], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert "merging" in process.stderr.readline()
    learner = psutil.Process(process.pid).children()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, "nothing was saved" in errors) == (130, True), errors
    assert not (tmp_path / "out").exists()
    assert len(learner) == 1
    assert psutil.wait_procs(learner, timeout=20)[1] == []
