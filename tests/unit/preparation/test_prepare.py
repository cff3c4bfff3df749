"""What comes of text: tokens, payloads, splits; the same bytes whoever works; only what is missing."""

import itertools
import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tokenfeed
from golden import golden_tokenizer
from preparing import (
    TOKENIZER,
    contents,
    expected_tokens,
    jsonl,
    make_documents,
    picture,
    prepare,
    write_inputs,
    write_jsonl,
)
from tokenfeed.errors import ArgumentError, CorruptionError, FormatError, MissingError, NotFoundError, StateError
from tokenfeed.preparation.records import choose_slice_bytes
from tokenfeed.store.sealing import load_manifest
from tokenfeed.store.verify import verify
from tokenfeed.text.sources.splitting import is_val


@pytest.fixture
def inputs(tmp_path):
    return tmp_path / "text", write_inputs(tmp_path / "text")


def test_documents_in_the_order_of_the_inputs(inputs, tmp_path):
    folder, documents = inputs
    report = prepare(folder, tmp_path / "store", val=None, keep=["url", "score"], slice_bytes=20_000)
    assert report.is_complete
    assert verify(tmp_path / "store").ok
    tokens, payloads = zip(*contents(tmp_path / "store"), strict=True)
    assert list(tokens) == expected_tokens(documents)
    assert list(payloads) == [{"url": one["url"], "score": one["score"]} for one in documents]
    assert report.total.documents == len(documents)
    assert report.total.tokens == sum(map(len, tokens)) == tokenfeed.open(tmp_path / "store").num_items
    assert report.total.characters == sum(len(one["text"]) for one in documents)
    assert report.total.input_bytes == report.num_bytes == sum(path.stat().st_size for path in folder.iterdir())
    assert report.total.empty == sum(not one["text"] for one in documents) > 0
    assert report.slices == report.num_slices == report.made > 3
    assert [(source.name, source.files) for source in report.sources] == [(".", 3)]


def test_what_the_manifest_says(inputs, tmp_path):
    folder, _ = inputs
    prepare(folder, tmp_path / "store")
    store = tokenfeed.open(tmp_path / "store")
    assert store.tokenizer == TOKENIZER.identity() == f"{TOKENIZER.digest} bos={TOKENIZER.bos_id}"
    assert store.columns["tokens"].dtype == np.uint16
    assert list(store.splits) in (["train", "val"], ["train"])
    assert store.provenance["made_by"] == "tokenfeed prepare"
    recipe = store.provenance["recipe"]
    assert (recipe["bos"], recipe["eos"], recipe["dtype"]) == (TOKENIZER.bos_id, None, "uint16")
    assert str(tmp_path) not in (tmp_path / "store" / "manifest.json").read_text()
    assert json.loads((tmp_path / "store" / "manifest.json").read_text())["shards"]


def test_tokens_around_documents_and_dtype(inputs, tmp_path):
    folder, documents = inputs
    options = {"eos": "<|assistant_end|>", "dtype": "int32", "val": None}
    prepare(folder, tmp_path / "store", **options)
    end = TOKENIZER.special_id("<|assistant_end|>")
    plain = [TOKENIZER.encode(one["text"]).tolist() for one in documents]
    assert [tokens for tokens, _ in contents(tmp_path / "store")] == [[*tokens, end] for tokens in plain]
    assert tokenfeed.open(tmp_path / "store").columns["tokens"].dtype == np.int32
    prepare(folder, tmp_path / "other", bos="<|user_start|>", val=None)
    first = TOKENIZER.special_id("<|user_start|>")
    assert [tokens for tokens, _ in contents(tmp_path / "other")] == [[first, *tokens] for tokens in plain]


def test_the_bytes_are_the_same_for_any_workers_and_engine_of_the_tokenizer(inputs, tmp_path):
    folder, _ = inputs
    options = {"slice_bytes": 15_000, "shard_bytes": 20_000, "val": 0.2, "keep": ["url"]}
    prepare(folder, tmp_path / "one", **options)
    prepare(folder, tmp_path / "two", workers=2, **options)
    prepare(folder, tmp_path / "processes", workers=2, engine="processes", **options)
    prepare(folder, tmp_path / "three", workers=3, **options, tokenizer=golden_tokenizer("tiktoken"))
    expected = picture(tmp_path / "one")
    assert len([name for name in expected if name.endswith("shard.json")]) > 8
    assert picture(tmp_path / "two") == expected
    assert picture(tmp_path / "processes") == expected
    assert picture(tmp_path / "three") == expected


def test_shards_roll_over_within_a_slice(inputs, tmp_path):
    folder, documents = inputs
    prepare(folder, tmp_path / "store", val=None, shard_bytes=10_000)
    names = [shard.name for shard in tokenfeed.open(tmp_path / "store").shards]
    assert names == sorted(names)
    assert {name.rpartition("-")[0] for name in names} == {f"{file:06d}-000000" for file in range(3)}
    assert [tokens for tokens, _ in contents(tmp_path / "store")] == expected_tokens(documents)


def test_split_by_text(inputs, tmp_path):
    """Where a document goes depends on its text alone; all are there, once."""
    folder, documents = inputs
    report = prepare(folder, tmp_path / "store", val=0.3, slice_bytes=20_000)
    val = contents(tmp_path / "store", split="val")
    train = contents(tmp_path / "store", split="train")
    chosen = ["val" if is_val(one["text"], 0.3) else "train" for one in documents]
    tokens = expected_tokens(documents)
    assert [one for one, _ in val] == [one for one, split in zip(tokens, chosen, strict=True) if split == "val"]
    assert [one for one, _ in train] == [one for one, split in zip(tokens, chosen, strict=True) if split == "train"]
    assert 0.1 < len(val) / len(documents) < 0.6
    assert (report.total.val_documents, report.total.val_tokens) == (len(val), sum(len(one) for one, _ in val))


def test_split_is_a_fair_draw():
    count = sum(is_val(f"document {number}", 0.1) for number in range(20_000))
    assert abs(count - 2000) < 5 * (20_000 * 0.1 * 0.9) ** 0.5
    assert all(is_val(str(n), 0.2) for n in range(2000) if is_val(str(n), 0.1))


@given(st.text(max_size=20), st.text(max_size=5), st.text(max_size=5))
def test_split_looks_at_the_first_characters(text, behind, other):
    long = (text + ".") * 4096
    assert is_val(long + behind, 0.5) == is_val(long + other, 0.5)


@pytest.mark.parametrize(("val", "expected"), [("last", [2]), ("a.jsonl", [0]), (["*.gz", "c*"], [1, 2])])
def test_split_by_file(inputs, tmp_path, val, expected):
    folder, documents = inputs
    prepare(folder, tmp_path / "store", val=val)
    parts = [documents[:40], documents[40:80], documents[80:]]
    held_out = [one for number in expected for one in parts[number]]
    assert [tokens for tokens, _ in contents(tmp_path / "store", split="val")] == expected_tokens(held_out)
    assert tokenfeed.open(tmp_path / "store", split="train").num_items > 0


def test_a_rerun_does_nothing_and_changes_nothing(inputs, tmp_path):
    folder, _ = inputs
    prepare(folder, tmp_path / "store")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "store").rglob("*") if path.is_file()}
    report = prepare(folder, tmp_path / "store")
    assert (report.made, report.is_complete) == (0, True)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "store").rglob("*") if path.is_file()} == before


def test_only_what_is_missing_is_made(inputs, tmp_path):
    """A record lost, a shard lost, a shard damaged beyond its record, shards without a record, an unfinished one."""
    folder, _ = inputs
    store = tmp_path / "store"
    prepare(folder, store, slice_bytes=20_000)
    expected = picture(store)
    names = sorted(path.name for path in (store / ".prepare" / "slices").iterdir())
    (store / ".prepare" / "slices" / names[0]).unlink()
    (store / ".prepare" / "slices" / names[1]).write_text("{")
    shutil.rmtree(store / f"{names[2].removesuffix('.json')}-train-00000")
    (store / f"{names[3].removesuffix('.json')}-train-00000" / "shard.json").unlink()
    shutil.copytree(store / f"{names[4].removesuffix('.json')}-train-00000", store / "000077-000000-train-00000")
    (store / "000078-000000-val-00003").mkdir()
    report = prepare(folder, store)
    assert report.made == 4
    assert picture(store) == expected


def test_more_inputs_are_more_slices(inputs, tmp_path):
    folder, _ = inputs
    prepare(folder, tmp_path / "store")
    write_jsonl(folder / "d.jsonl", make_documents(30, seed=5))
    before = tokenfeed.open(tmp_path / "store")
    report = prepare(folder, tmp_path / "store")
    assert report.made == 1
    now = tokenfeed.open(tmp_path / "store")
    assert f"version 2 of the store, identity of train {before.identity} → {now.identity}" in report.growth
    assert "open(path, version=1); a run that should go on" in str(report)
    assert tokenfeed.open(tmp_path / "store", version=1).identity == before.identity
    assert not prepare(folder, tmp_path / "store").growth
    assert not prepare(folder, tmp_path / "fresh").growth
    assert picture(tmp_path / "store") == picture(tmp_path / "fresh")


def test_inputs_that_changed(inputs, tmp_path):
    folder, _ = inputs
    prepare(folder, tmp_path / "store", slice_bytes=20_000)
    write_jsonl(folder / "a.jsonl", make_documents(10, seed=6))
    before = picture(tmp_path / "store")
    with pytest.raises(ArgumentError, match=r"a\.jsonl had [\d,]+ bytes, now [\d,]+"):
        prepare(folder, tmp_path / "store")
    with pytest.raises(ArgumentError, match=r"a\.jsonl"):
        prepare(folder, tmp_path / "store", dry_run=True)
    assert picture(tmp_path / "store") == before
    assert prepare(folder, tmp_path / "store", dry_run=True, replace_changed=True).slices < len(before)
    report = prepare(folder, tmp_path / "store", replace_changed=True)
    assert "Checkpoints of earlier versions cannot go on" in report.growth
    with pytest.raises(CorruptionError, match=r"version 1 .* is lost"):
        tokenfeed.open(tmp_path / "store", version=1)
    prepare(folder, tmp_path / "fresh", slice_bytes=20_000)
    assert picture(tmp_path / "store") == picture(tmp_path / "fresh")


def test_an_input_that_has_nothing_any_more(inputs, tmp_path):
    """What was of it is gone from a store that was sealed; nothing new is made."""
    folder, _ = inputs
    prepare(folder, tmp_path / "store")
    (folder / "a.jsonl").write_bytes(b"")
    assert prepare(folder, tmp_path / "store", replace_changed=True).made == 0
    assert verify(tmp_path / "store").ok
    prepare(folder, tmp_path / "fresh")
    assert picture(tmp_path / "store") == picture(tmp_path / "fresh")


def test_inputs_that_are_gone_or_in_another_order(inputs, tmp_path):
    folder, _ = inputs
    prepare(folder, tmp_path / "store")
    with pytest.raises(ArgumentError, match=r"from 3 inputs, now there are 2; missing: c\.parquet"):
        prepare([folder / "a.jsonl", folder / "b.jsonl.gz"], tmp_path / "store")
    with pytest.raises(ArgumentError, match=r"input 0 was a\.jsonl .* now b\.jsonl\.gz"):
        prepare([folder / "b.jsonl.gz", folder / "a.jsonl", folder / "c.parquet"], tmp_path / "store")


def test_inputs_may_be_moved(inputs, tmp_path):
    folder, _ = inputs
    prepare(folder, tmp_path / "store")
    folder.rename(tmp_path / "elsewhere")
    assert prepare(tmp_path / "elsewhere", tmp_path / "store").made == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keep": ["url"]}, r"keep was \(\), now \('url',\)"),
        ({"eos": "<|bos|>"}, "eos was None, now"),
        ({"val": 0.5}, r"val was 0\.001, now 0\.5"),
        ({"slice_bytes": 999}, "slice_bytes was 8388608, now 999"),
        ({"tokenizer": golden_tokenizer("tiktoken", "gpt2")}, "tokenizer was"),
    ],
)
def test_another_recipe_is_refused(inputs, tmp_path, options, message):
    folder, _ = inputs
    prepare(folder, tmp_path / "store")
    with pytest.raises(ArgumentError, match=message):
        prepare(folder, tmp_path / "store", **options)


def test_a_store_that_was_not_prepared_is_left_alone(inputs, store_path):
    folder, _ = inputs
    before = picture(store_path)
    with pytest.raises(ArgumentError, match="not prepared from text"):
        prepare(folder, store_path)
    assert picture(store_path) == before


def test_malformed_lines(tmp_path):
    lines = jsonl(make_documents(5)).splitlines(keepends=True)
    (tmp_path / "text.jsonl").write_bytes(b"".join([*lines[:2], b'{"text": \n', *lines[2:], b'{"url": "x"}\n']))
    with pytest.raises(FormatError, match=r"text\.jsonl, line 3: the line is not JSON"):
        prepare(tmp_path / "text.jsonl", tmp_path / "store")
    report = prepare(tmp_path / "text.jsonl", tmp_path / "store", on_error="skip")
    assert (report.total.documents, report.total.malformed, report.total.null) == (5, 2, 0)
    assert report.left_out == 2
    assert any("line 3" in problem for problem in report.problems)
    assert prepare(tmp_path / "text.jsonl", tmp_path / "store").problems == report.problems
    assert verify(tmp_path / "store").ok


@pytest.mark.parametrize("workers", [0, 2])
def test_long_documents_come_in_pieces(tmp_path, workers, monkeypatch):
    """6 MB of text: longer than what is read at once. Tokens are those of the whole."""
    rng = np.random.default_rng(3)
    words = ["alpha ", "beta, ", "gamma.\n", "12345 ", "naïve ", "語語。", "\n\n", "it's "]
    text = "".join(words[number] for number in rng.integers(0, len(words), 1_100_000))
    document = {"text": text, "url": "long"}
    write_jsonl(tmp_path / "text.jsonl", [*make_documents(3), document, {"text": "end", "url": "end"}])
    tokenizer = golden_tokenizer()
    options = {"keep": ["url"], "bos": "<|bos|>", "eos": "<|bos|>"}
    prepare(tmp_path / "text.jsonl", tmp_path / "store", tokenizer=tokenizer, workers=workers, **options)
    made = {payload["url"]: tokens for tokens, payload in contents(tmp_path / "store")}
    assert list(made)[-2:] == ["long", "end"]
    expected = tokenizer.encode(text, prepend="<|bos|>", append="<|bos|>")
    np.testing.assert_array_equal(made["long"], expected)


def test_an_empty_file_and_nothing_at_all(tmp_path):
    (tmp_path / "empty.jsonl").write_bytes(b"")
    with pytest.raises(ArgumentError, match=r"there is no document in the inputs: 1 file, 0 bytes"):
        prepare(tmp_path / "empty.jsonl", tmp_path / "store")
    write_jsonl(tmp_path / "null.jsonl", [{"text": None}])
    with pytest.raises(ArgumentError, match=r"1 left out. The store was not sealed"):
        prepare(tmp_path / "null.jsonl", tmp_path / "store", val=None)
    write_jsonl(tmp_path / "full.jsonl", make_documents(3))
    assert prepare(tmp_path / "full.jsonl", tmp_path / "store").is_complete
    with pytest.raises(NotFoundError):
        prepare(tmp_path / "nothing.jsonl", tmp_path / "other")
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"val": 1.0}, ArgumentError, "val is 1.0"),
        ({"separator": "bos"}, ArgumentError, "separator is 'bos'"),
        ({"separator": None, "eos": "<|bos|>"}, ArgumentError, "leave one of them out"),
        ({"workers": -1}, ArgumentError, "workers"),
        ({"engine": "spark"}, ArgumentError, "spark"),
        ({"dtype": "uint8"}, ArgumentError, "uint8"),
        ({"dtype": "text"}, ArgumentError, "text"),
        ({"eos": "<|end|>"}, MissingError, "end"),
        ({"keep": ["url", "url"]}, ArgumentError, "twice"),
        ({"part": (3, 3)}, ArgumentError, "part is 3 of 3"),
        ({"part": (0, 3), "replace_changed": True}, ArgumentError, "replace_changed"),
        ({"slice_bytes": 0}, ArgumentError, "slice_bytes"),
        ({"val": ["z*"]}, ArgumentError, "z\\*"),
        ({"val": "*"}, NotFoundError, "no file is left for split 'train'"),
        ({"on_error": "ignore"}, ArgumentError, "ignore"),
    ],
)
def test_arguments_that_cannot_be_meant(inputs, tmp_path, options, error, message):
    folder, _ = inputs
    with pytest.raises(error, match=message):
        prepare(folder, tmp_path / "store", **options)
    assert not (tmp_path / "store" / "manifest.json").exists() or "on_error" in options


def test_slices_grow_with_the_inputs():
    assert choose_slice_bytes(0) == choose_slice_bytes(4 << 30) == 8 << 20
    assert choose_slice_bytes((4 << 30) + 1) == 16 << 20
    assert choose_slice_bytes(10**15) == 256 << 20


def test_progress_adds_up(inputs, tmp_path):
    folder, documents = inputs
    seen = []
    report = prepare(folder, tmp_path / "store", slice_bytes=5_000, progress=seen.append)
    assert seen[-1].total == report.total
    assert seen[-1].total.documents == len(documents)
    assert (seen[-1].files, seen[-1].slices, seen[-1].total.input_bytes) == (3, report.num_slices, report.num_bytes)
    assert all(before.total.documents <= after.total.documents for before, after in itertools.pairwise(seen))


def test_a_sealed_store_that_lacks_shards(inputs, tmp_path):
    """`verify` compares the list with the records; a rerun repairs it."""
    folder, _ = inputs
    store = tmp_path / "store"
    prepare(folder, store, slice_bytes=20_000)
    expected, manifest = picture(store), load_manifest(store)
    for wrong in (manifest.shards[1:], [*manifest.shards[1:], replace(manifest.shards[0], checksum="0" * 16)]):
        (store / "manifest.json").write_text(replace(manifest, shards=tuple(wrong)).to_json())
        problem = next(problem for problem in verify(store).problems if " lacks " in problem)
        assert f"lacks 1 shard that `tokenfeed prepare` made: {manifest.shards[0].name}. Run the same" in problem
        assert not prepare(folder, store, dry_run=True).is_complete
        assert prepare(folder, store).is_complete
        assert picture(store) == expected


def test_a_run_whose_plan_was_changed_meanwhile_does_not_seal(inputs, tmp_path):
    """Another run adds an input while this one works, where no lock keeps them apart."""
    folder, _ = inputs
    store = f"memory://bucket/{tmp_path.name}"
    begun = []

    @tokenfeed.preparation.annotates()
    def annotate(text, kept, tokens):
        if not begun:
            begun.append(True)
            write_jsonl(folder / "d.jsonl", make_documents(5, seed=7))
            assert prepare(folder, store, map=annotate).is_complete
        return {}

    with pytest.raises(StateError, match="with other inputs, which it began after this one"):
        prepare(folder, store, map=annotate)
    assert verify(store).problems == []
    assert prepare(folder, store, map=annotate).made == 0
    prepare(folder, tmp_path / "fresh", map=annotate)
    shards = load_manifest(store).shards
    assert shards == load_manifest(tmp_path / "fresh").shards
    assert any(entry.name.startswith("000003-") for entry in shards)


def test_other_separators_are_another_store(inputs, tmp_path):
    """Stores of one vocabulary, one with BOS before documents and one with another token after them, were mixed."""
    folder, _ = inputs
    other = next(name for name in TOKENIZER.vocabulary.special_tokens if name != TOKENIZER.vocabulary.bos)
    prepare(folder, tmp_path / "bos", val=None)
    prepare(folder, tmp_path / "eos", val=None, eos=other)
    prepare(folder, tmp_path / "none", val=None, separator=None)
    prepare(folder, tmp_path / "same", val=None, bos=TOKENIZER.vocabulary.bos)
    stores = {name: tokenfeed.open(tmp_path / name) for name in ("bos", "eos", "none", "same")}
    assert stores["eos"].tokenizer == TOKENIZER.identity(eos=other)
    assert stores["none"].tokenizer == TOKENIZER.identity(separator=None) == f"{TOKENIZER.digest} no-separator"
    views = {name: store.windows(16) for name, store in stores.items()}
    for name in ("eos", "none"):
        with pytest.raises(ArgumentError, match=r"made with different tokenizers, .*allow_different_tokenizers=True"):
            tokenfeed.mix({"bos": (views["bos"], 1), "x": (views[name], 1)})
        with pytest.raises(ArgumentError, match=r"cannot be one store.* the same bos=… and eos=…; or mix them"):
            tokenfeed.combine([tmp_path / "bos", tmp_path / name], tmp_path / "all")
        tokenfeed.mix({"bos": (views["bos"], 1), "x": (views[name], 1)}, allow_different_tokenizers=True)
    tokenfeed.mix({"bos": (views["bos"], 1), "x": (views["same"], 1)})
    tokenfeed.combine([tmp_path / "bos", tmp_path / "same"], tmp_path / "both")
