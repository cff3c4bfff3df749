"""What would make a wrong store is right by default, or refused with a way out."""

import re
from dataclasses import replace

import pytest
import tiktoken

import tokenfeed
from command_line import run
from preparing import TOKENIZER, contents, expected_tokens, make_documents, prepare, write_inputs, write_jsonl
from tokenfeed.errors import ArgumentError, FormatError, MissingError, NotFoundError, StateError
from tokenfeed.store.verify import verify
from tokenfeed.text.tokenizer.tokenizer import Tokenizer


@pytest.fixture
def inputs(tmp_path):
    return tmp_path / "text", write_inputs(tmp_path / "text")


def test_documents_do_not_run_into_each_other(inputs, tmp_path):
    """A tokenizer that names neither BOS nor EOS is refused until the caller says what to do."""
    folder, documents = inputs
    neither = Tokenizer(replace(TOKENIZER.vocabulary, bos=None))
    with pytest.raises(ArgumentError, match=r"run into each other.*bos=….*--bos.*--eos.*--no-separator"):
        prepare(folder, tmp_path / "store", tokenizer=neither)
    assert not (tmp_path / "store").exists()
    plain = [TOKENIZER.encode(one["text"]).tolist() for one in documents]
    end = TOKENIZER.special_id("<|assistant_end|>")
    for number, (tokenizer, options, before, after) in enumerate(
        (
            (neither, {"separator": None}, [], []),
            (neither, {"eos": "<|assistant_end|>"}, [], [end]),
            (neither, {"bos": "<|bos|>"}, [TOKENIZER.bos_id], []),
            (Tokenizer(replace(neither.vocabulary, eos="<|assistant_end|>")), {}, [], [end]),
        )
    ):
        prepare(folder, tmp_path / str(number), tokenizer=tokenizer, val=None, **options)
        made = [tokens for tokens, _ in contents(tmp_path / str(number))]
        assert made == [[*before, *tokens, *after] for tokens in plain]


def test_a_stream_keeps_documents_apart_by_the_same_tokens(inputs):
    folder, _ = inputs
    options = {"batch_size": 2, "length": 32, "prefetch": 0}
    neither = replace(TOKENIZER.vocabulary, bos=None)
    with pytest.raises(MissingError, match=r"which token begins a document; open it with Tokenizer.load\(…, bos=…\)"):
        tokenfeed.stream(folder, Tokenizer(neither), **options)
    ending = Tokenizer(replace(neither, eos="<|assistant_end|>"))
    assert (next(tokenfeed.stream(folder, ending, **options)).tokens[:, 0] == ending.bos_id).all()


def test_files_that_say_their_split_are_respected(tmp_path):
    (tmp_path / "in").mkdir()
    documents = make_documents(4)
    for name, one in zip(("train-0", "train-1", "test-0", "validation-0"), documents, strict=True):
        write_jsonl(tmp_path / "in" / f"{name}.jsonl", [one])
    report = prepare(tmp_path / "in", tmp_path / "store")
    assert report.splits == {"train": 2, "test": 1, "val": 1}
    expected = expected_tokens(documents)
    for split, wanted in (("train", expected[:2]), ("test", expected[2:3]), ("val", expected[3:])):
        assert [tokens for tokens, _ in contents(tmp_path / "store", split=split)] == wanted
    prepare(tmp_path / "in", tmp_path / "none", val=None)
    assert [tokens for tokens, _ in contents(tmp_path / "none", split="train")] == expected[:2]
    prepare(
        tmp_path / "in", tmp_path / "other", val="train-1*"
    )  # what says val is not train, whatever else is held out
    assert [tokens for tokens, _ in contents(tmp_path / "other", split="train")] == expected[:1]


def test_a_file_that_changes_its_split_is_a_changed_input(inputs, tmp_path):
    folder, _ = inputs
    prepare(folder, tmp_path / "store", val="last")
    write_jsonl(folder / "d.jsonl", make_documents(2))
    with pytest.raises(ArgumentError, match=r"c.parquet was in split val, now it is in train"):
        prepare(folder, tmp_path / "store", val="last")


def test_a_folder_of_something_else_is_refused(inputs, tmp_path):
    folder, _ = inputs
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "cat.png").write_bytes(b"")
    for options in ({}, {"dry_run": True}):
        with pytest.raises(ArgumentError, match=r"images is not empty and not a store: it holds cat.png"):
            prepare(folder, tmp_path / "images", **options)
    assert [path.name for path in (tmp_path / "images").iterdir()] == ["cat.png"]
    with pytest.raises(ArgumentError, match="is a file"):
        prepare(folder, tmp_path / "images" / "cat.png")
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / ".gitkeep").write_bytes(b"")
    assert prepare(folder, tmp_path / "new").is_complete


def test_a_failed_first_run_does_not_lock_its_settings_in(inputs, tmp_path):
    folder, documents = inputs
    with pytest.raises(FormatError):
        prepare(folder / "a.jsonl", tmp_path / "store", text_column="score", dtype="int32", keep=["url"])
    assert prepare(folder, tmp_path / "store", dry_run=True).slices == 0
    prepare(folder, tmp_path / "store", val=None)
    assert [tokens for tokens, _ in contents(tmp_path / "store")] == expected_tokens(documents)
    with pytest.raises(ArgumentError, match="prepared with other settings"):
        prepare(folder, tmp_path / "store", val=None, dtype="int32")


def test_a_report_in_four_lines(inputs, tmp_path):
    folder, _ = inputs
    lines = str(prepare(folder, tmp_path / "store", val="a.jsonl")).splitlines()
    assert len(lines) == 4
    assert re.fullmatch(r".*store: 120 documents, [\d,]+ tokens, 3 shards, complete and sealed", lines[0])
    assert re.fullmatch(r"  train: 80 documents, .* \(2 files\); val: 40 documents, .* \(1 file\)", lines[1])
    assert re.fullmatch(r"  read: 3 files, [\d.]+ MB; left out: nothing", lines[2])
    assert re.fullmatch(r"  this run: 3 of 3 slices in [\d.]+ s: [\d.]+ M tokens/s, [\d.]+ MB/s", lines[3])
    assert "no splits" in str(prepare(folder / "a.jsonl", tmp_path / "one", val=None))


def test_a_val_that_is_empty_is_told(tmp_path):
    write_jsonl(tmp_path / "a.jsonl", make_documents(3))
    report = prepare(tmp_path / "a.jsonl", tmp_path / "store")
    assert "val: nothing held out, val=0.001 of so few documents" in str(report).splitlines()[1]
    assert "nothing held out" not in str(prepare(tmp_path / "a.jsonl", tmp_path / "none", val=None))
    with pytest.raises(MissingError, match="no split 'train'; the store has no splits: leave split out"):
        tokenfeed.open(tmp_path / "none", split="train")


def test_to_hold_out_everything_is_refused_with_advice_that_helps(tmp_path):
    write_jsonl(tmp_path / "a.jsonl", make_documents(3))
    write_jsonl(tmp_path / "val-0.jsonl", make_documents(3))
    TOKENIZER.save(tmp_path / "tokenizer")
    for val in ("last", "a.jsonl", tmp_path / "a.jsonl", ["a.*"]):
        with pytest.raises(NotFoundError, match=r"val holds out .*a\.jsonl") as refused:
            prepare(tmp_path / "a.jsonl", tmp_path / "store", val=val)
        assert "split=" not in str(refused.value)
    options = ("-o", tmp_path / "store", "--tokenizer", tmp_path / "tokenizer", "-w", 0)
    told = run("prepare", tmp_path / "a.jsonl", "--val", "a.jsonl", *options).stderr
    words = " ".join(told.replace("│", " ").split())
    assert "a share of the documents (--val 0.001), fewer files, or nothing (--val none)" in words
    assert prepare(tmp_path / "val-0.jsonl", tmp_path / "named").splits == {"val": 1}
    told = run("prepare", tmp_path / "val-0.jsonl", "--val", "all-data", *options)
    assert "no splits" in told.stdout
    learn = "train-tokenizer", tmp_path, "--vocab-size", 280, "-o"
    assert "held out by name: val-0.jsonl; val=0.001 becomes 0" in run(*learn, tmp_path / "one").stdout
    assert "held out" not in run(*learn, tmp_path / "two", "--val", "all-data").stdout
    assert (
        "held out by name: val-0.jsonl"
        in run("prepare", tmp_path, "--dry-run", "-o", tmp_path / "no", *options[2:]).stdout
    )
    store = str(tmp_path / "other")
    (tmp_path / "a.jsonl").rename(tmp_path / "my-test.jsonl")
    told = run("prepare", tmp_path / "my-test.jsonl", "-o", store, *options[2:]).stderr
    words = " ".join(told.replace("│", " ").split())
    assert "Hold it out with --val 'my-test.*', or take all files as data with --val all-data" in words


def test_a_tokenizer_of_another_library_gets_advice(inputs, tmp_path):
    folder, _ = inputs
    encoding = tiktoken.Encoding(
        "x", pat_str=".", mergeable_ranks={bytes((n,)): n for n in range(256)}, special_tokens={}
    )
    with pytest.raises(ArgumentError, match=r"tokenizer is a tiktoken.*Tokenizer.from_tiktoken\(encoding, bos="):
        prepare(folder, tmp_path / "store", tokenizer=encoding)
    with pytest.raises(ArgumentError, match=r"tokenizer is a builtins.int; pass a tokenfeed.Tokenizer"):
        prepare(folder, tmp_path / "store", tokenizer=5)


def test_an_unfinished_store_is_refused(inputs, tmp_path):
    """After one of two parts, a failed run or a failed replacement; `seal` takes what is there."""
    folder, documents = inputs
    store, options = tmp_path / "store", {"slice_bytes": 15_000, "val": None}
    assert not prepare(folder, store, part=(0, 2), **options).is_complete

    def check_refused():
        with pytest.raises(StateError, match=r"not finished.*tokenfeed prepare.*again.*tokenfeed\.seal\(path\)"):
            tokenfeed.open(store)
        with pytest.raises(StateError, match="not finished"):
            tokenfeed.open([store, store])
        with pytest.raises(StateError, match="not finished"):
            tokenfeed.combine([store], tmp_path / "combined")
        assert any("not finished" in problem for problem in verify(store).problems)
        done = run("verify", store)
        assert done.returncode == 1
        assert "not finished" in done.stdout
        shown = run("inspect", store)
        assert shown.returncode == 0
        assert "not finished" in shown.stdout

    check_refused()
    prepare(folder, store, part=(1, 2), **options)
    assert [tokens for tokens, _ in contents(store)] == expected_tokens(documents)
    assert verify(store).ok
    assert "not finished" not in run("inspect", store).stdout

    write_jsonl(folder / "a.jsonl", make_documents(4))
    with (folder / "a.jsonl").open("a") as file:
        file.write("no JSON\n")
    with pytest.raises(FormatError, match=r"a\.jsonl"):
        prepare(folder, store, replace_changed=True, **options)
    check_refused()
    tokenfeed.seal(store)
    assert verify(store).ok
    assert len(contents(store)) < len(documents)
    with pytest.raises(FormatError, match=r"a\.jsonl"):
        prepare(folder, tmp_path / "new", **options)
    with pytest.raises(StateError, match="not finished"):
        tokenfeed.open(tmp_path / "new")
