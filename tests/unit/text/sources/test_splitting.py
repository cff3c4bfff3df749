"""What is train and what is val: by text, by file, by name; the same for `stream`, `prepare` and a plain listing."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tokenfeed
from golden import golden_tokenizer
from tokenfeed.errors import ArgumentError, NotFoundError, PlanMismatchError
from tokenfeed.text import stream_chat
from tokenfeed.text.sources.files import TextFiles
from tokenfeed.text.sources.finding import Found, Listing, write_listing
from tokenfeed.text.sources.splitting import choose_splits, is_val, named_split

TEXTS = [f"document {number}" for number in range(600)]
SMALL = {"batch_size": 2, "length": 16, "buffer_size": 5, "refill_size": 3, "rank": 0, "world_size": 1, "prefetch": 0}


def write(folder, **texts):
    for name, documents in texts.items():
        path = folder / f"{name.replace('__', '/')}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
    return folder


def documents(source, **options):
    return list(TextFiles.find(source, **options).documents())


def test_a_share_of_the_documents_by_their_text_as_prepare_chooses(tmp_path):
    write(tmp_path, a=TEXTS[:300], b=TEXTS[300:])
    train, val = (documents(tmp_path, split=split, val=0.1) for split in ("train", "val"))
    assert sorted(train + val) == sorted(TEXTS)
    assert 30 < len(val) < 90
    assert val == [text for text in TEXTS if is_val(text, 0.1)]
    assert set(documents(tmp_path, split="val", val=0.05)) < set(val), "a smaller share is part of a larger one"
    assert documents(tmp_path, split="val") == [text for text in TEXTS if is_val(text, 0.001)]
    assert documents(tmp_path) == documents(tmp_path, val=0.1) == TEXTS


def test_files_by_name_pattern_or_place(tmp_path):
    write(tmp_path, a=["a"], b=["b"], sub__b=["c"], c=["d"])
    source = [tmp_path, tmp_path / "sub"]
    assert TextFiles.find(source, split="val", val="last").names == ("sub/b.jsonl",)
    assert TextFiles.find(source, split="train", val="last").names == ("a.jsonl", "b.jsonl", "c.jsonl")
    assert documents(source, split="val", val="b.jsonl") == ["b", "c"]
    assert documents(source, split="val", val=["sub/*", str(tmp_path / "a.jsonl")]) == ["a", "c"]
    assert documents(source, split="train", val=None) == ["a", "b", "d", "c"]
    with pytest.raises(ArgumentError, match=r"no file is called 'd\*'; the first of 4 is a\.jsonl"):
        TextFiles.find(source, split="val", val="d*")
    with pytest.raises(ArgumentError, match="split is 'test'; it must be 'train', 'val' or 'all'"):
        TextFiles.find(source, split="test")
    for share in (1.0, -0.1, True, float("nan")):
        with pytest.raises(ArgumentError, match="at least 0 and below 1"):
            TextFiles.find(source, val=share)


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("train-00000-of-00010.parquet", "train"),
        ("training.00.jsonl", "train"),
        ("validation-00000-of-00001.parquet", "val"),
        ("validation-00000-of-00001-a09b74b3ef9c3b56.parquet", "val"),
        ("val.00007-of-00008.json.gz", "val"),
        ("dev_3.jsonl", "val"),
        ("eval2.jsonl.zst", "val"),
        ("VALID.txt", "val"),
        ("test-2024-01.jsonl", "test"),
        ("train/test-0.jsonl", "test"),
        ("test/train-0.parquet", "train"),
        ("val/part-0.parquet", "val"),
        ("val/en/part-0.parquet", "val"),
        ("validation--000.parquet", "val"),
        ("c4-validation.00007-of-00008.json.gz", "c4-validation.*"),
        ("stack-dev.parquet", "stack-dev.*"),
        ("gsm8k-test_3.jsonl", "gsm8k-test_*"),
        ("pile.test.jsonl.zst", "pile.test.*"),
        ("wiki_VALID.txt", "wiki_VALID.*"),
        ("train/my eval.jsonl", "my eval.*"),
        ("stack-dev/part-0.jsonl", "stack-dev/*"),
        ("stack-dev/en/part-0.jsonl", "stack-dev/*"),
        ("test-driven-development.parquet", None),
        ("test-drive/part-0.jsonl", None),
        ("unit-test-corpus.jsonl", None),
        ("wiki_VALIDated.jsonl", None),
        ("éval.jsonl", None),
        ("contest.jsonl", None),
        ("c4-train.jsonl", None),
        ("00000.parquet", None),
        ("part-0.parquet", None),
    ],
)
def test_what_a_name_says(path, said):
    """A split, nothing, or perhaps a split: then it is refused with the pattern that names it."""
    unclear = said if said not in (None, "train", "val", "test") else ""
    assert named_split(Found(f"s3://bucket/data/{path}", path)) == (None if unclear else said, unclear)
    if unclear:
        assert choose_splits([Found("a"), Found(path, path)], unclear).files == ("train", "val")


def test_a_folder_that_all_files_share_holds_them_out_by_its_name_alone():
    for folder, split in (("dev", "val"), ("my-project-dev", None), ("test", "test")):
        assert named_split(Found(f"s3://{folder}/part-0.parquet", "part-0.parquet")) == (split, "")


def test_a_name_that_may_mean_anything_is_refused_with_ways_out_that_work(tmp_path):
    texts = {"arxiv": TEXTS[:9], "stack-dev-0": TEXTS[9:12], "stack-dev-1": TEXTS[12:15], "x__gsm8k-test": TEXTS[15:20]}
    folder = write(tmp_path / "data", **texts, **{"test-driven-development": TEXTS[20:30]}, x__y=TEXTS[:1])
    words = (
        r"stack-dev-0\.jsonl, stack-dev-1\.jsonl, x/gsm8k-test\.jsonl: a name that ends so .* Hold them out with "
        r"val=\['stack-dev-\*', 'gsm8k-test\.\*'\], or take all files as data with val=\(\)$"
    )
    tokenizer, source = golden_tokenizer(), f"{folder}/**/*.jsonl"
    for val in (0.2, None, "last"):
        with pytest.raises(ArgumentError, match=words):
            tokenfeed.stream(source, tokenizer, **SMALL, val=val)
        with pytest.raises(ArgumentError, match=words):
            tokenfeed.prepare(source, tmp_path / "store", tokenizer=tokenizer, workers=0, val=val)
    named = {"val": ["stack-dev-*", "gsm8k-test.*"]}
    assert sorted(documents(source, split="val", **named)) == sorted(TEXTS[9:20])
    assert sorted(documents(source, split="train", **named)) == sorted(TEXTS[:9] + TEXTS[20:30] + TEXTS[:1])
    assert sorted(documents(source, split="train", val=())) == sorted(TEXTS[:30] + TEXTS[:1])
    assert sorted(documents(source, split="all")) == sorted(TEXTS[:30] + TEXTS[:1])
    report = tokenfeed.prepare(source, tmp_path / "store", tokenizer=tokenizer, workers=0, val=())
    assert (report.total.documents, report.splits, report.held_out) == (31, {}, "")


def test_what_names_hold_out_is_said_in_one_line(tmp_path, caplog):
    folder = write(tmp_path / "data", arxiv=TEXTS[:9], validation=TEXTS[9:12], test=TEXTS[12:15])
    line = "held out by name: test.jsonl, validation.jsonl; val=0.25 becomes 0, since the data has its validation files"
    tokenizer = golden_tokenizer()
    for rank in (1, 0, 0):
        tokenfeed.stream(folder, tokenizer, **{**SMALL, "rank": rank, "world_size": 2}, epochs=1, val=0.25)
    assert [(record.name, record.message) for record in caplog.records] == [("tokenfeed", line)]
    chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    for name in ("a.jsonl", "dev.jsonl"):
        (tmp_path / name).write_text(json.dumps({"messages": chat}) + "\n")
    stream_chat(f"{tmp_path}/*.jsonl", tokenizer, batch_size=1, length=16, rank=0, world_size=1)
    assert caplog.messages[1:] == [f"held out by name: dev.jsonl; val=0.001 {line.partition('val=0.25 ')[2]}"]
    report = tokenfeed.prepare(folder, tmp_path / "store", tokenizer=tokenizer, workers=0, val=0.25)
    assert str(report).splitlines()[2].strip() == report.held_out == line
    assert TextFiles.find(folder, split="train", val=None).held_out == line.partition(";")[0]
    for nothing in (documents(folder / "arxiv.jsonl"), documents(folder, split="train", val=())):
        assert nothing[:9] == TEXTS[:9]
    assert TextFiles.find(folder, split="train", val=()).held_out == TextFiles.find(folder).held_out == ""
    write_listing(folder, Listing(train=("arxiv.jsonl",), val=("test.jsonl",)))
    listed = TextFiles.find(folder, split="train").held_out
    assert listed.startswith("held out by files.json: test.jsonl; val=0.001 becomes 0")
    write(tmp_path / "many", **{f"val-{number}": TEXTS[:1] for number in range(5)}, a=TEXTS[:1])
    shown = "held out by name: val-0.jsonl, val-1.jsonl, val-2.jsonl and 2 more files"
    assert TextFiles.find(tmp_path / "many", split="train", val=None).held_out == shown


def test_files_named_val_or_test_are_never_train(tmp_path):
    write(tmp_path, train=TEXTS[:50], validation=TEXTS[50:60], test=TEXTS[60:70], more=TEXTS[70:80])
    assert (
        documents(tmp_path, split="train") == documents(tmp_path, split="train", val=None) == TEXTS[70:80] + TEXTS[:50]
    )
    assert documents(tmp_path, split="val", val=0.5) == TEXTS[50:60]
    assert documents(tmp_path, split="train", val="more*") == TEXTS[:50]
    shown = repr(TextFiles.find(tmp_path, split="train"))
    assert "2 files of split 'train', more.jsonl to train.jsonl, not test.jsonl and 1 more" in shown
    assert len(documents(tmp_path)) == 80
    for alone in ("validation", "test"):
        with pytest.raises(NotFoundError, match=r"is left for split 'train'.*val=\(\) takes all files as data"):
            TextFiles.find(tmp_path / f"{alone}.jsonl", split="train")
        assert len(documents(tmp_path / f"{alone}.jsonl", split="train", val=())) == 10
    nested = write(tmp_path / "nested", train__a=["a"], validation__a=["b"])
    assert documents(f"{nested}/*/*.jsonl", split="train") == ["a"]
    assert documents(nested / "validation", split="val") == ["b"]


@given(st.text(max_size=20), st.sampled_from("aé界😀"))
def test_a_split_is_that_of_the_text_however_it_is_kept(end, character):
    """Its first 4,096 characters count, wherever they end in UTF-8."""
    for text in (end, character * 4095 + end):
        for fraction in (0.2, 0.7):
            assert is_val(text.encode(), fraction) == is_val(text, fraction)


def test_a_listing_says_what_is_val(tmp_path):
    write(tmp_path, a=["a"], b=["b"], c=["c"])
    write_listing(tmp_path, Listing(train=("c.jsonl", "a.jsonl"), val=("b.jsonl",)))
    assert documents(tmp_path, split="train") == ["c", "a"]
    assert documents(tmp_path, split="val") == ["b"]
    assert documents(tmp_path, split="val", val="a.jsonl") == ["a"]
    assert choose_splits([Found("a.jsonl", "a.jsonl", "train")], 0.3).fraction == 0.3


def test_nothing_held_out_is_an_error_that_names_the_way_out(tmp_path):
    write(tmp_path, a=["a"])
    for val in (None, 0.0):
        with pytest.raises(NotFoundError, match=r"nothing is held out .*val=0\.001.*val='last'"):
            TextFiles.find(tmp_path, split="val", val=val)
    words = r"no file is left for split 'train': val holds out .*a\.jsonl.*\(val=0\.001\), .*\(val=None\)$"
    with pytest.raises(NotFoundError, match=words):
        TextFiles.find(tmp_path, split="train", val="last")


def test_a_state_is_refused_by_a_stream_with_another_rule(tmp_path):
    write(tmp_path, a=TEXTS[:100])

    def make(**options):
        return tokenfeed.stream(tmp_path, golden_tokenizer(), **SMALL, **options)

    state = next(make(val=0.2)).state
    make(val=0.2).load_state_dict(state)
    for other in ({"val": 0.1}, {"val": None}, {"split": "val", "val": 0.2}, {"split": "all"}):
        with pytest.raises(PlanMismatchError, match="split"):
            make(**other).load_state_dict(state)


def test_a_stream_delivers_its_split_alone_and_all_of_it_across_a_resume(tmp_path):
    write(tmp_path, a=TEXTS[:120], b=TEXTS[120:200])
    seen = {}
    for split in ("train", "val"):
        options = {**SMALL, "split": split, "val": 0.3, "epochs": 1}
        feed = tokenfeed.stream(tmp_path, golden_tokenizer(), **options)
        batches = [next(feed) for _ in range(8)]
        resumed = tokenfeed.stream(tmp_path, golden_tokenizer(), **options)
        resumed.load_state_dict(batches[-1].state)
        starts = [place for batch in [*batches, *resumed] for *place, before in batch.documents.tolist() if not before]
        seen[split] = sorted(TEXTS[120 * file + row] for file, _, row in starts)
        assert seen[split] == sorted(text for text in TEXTS[:200] if is_val(text, 0.3) == (split == "val"))
    assert len(seen["train"]) + len(seen["val"]) == 200
