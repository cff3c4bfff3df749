"""`prepare(chat=…)`: conversations in files become documents with a loss mask, which every view uses by itself."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import tokenfeed
from chatting import CONVERSATIONS, TURNS, plain, said, save_model
from golden import golden_tokenizer
from tokenfeed.cli import app
from tokenfeed.errors import ArgumentError, FormatError, PlanMismatchError, StateError
from tokenfeed.text import Chat, ChatTemplate, render, stream_chat

RECORDS = [
    {"messages": messages, "id": number}
    for number, messages in enumerate(
        [CONVERSATIONS["two turns"], CONVERSATIONS["system"], CONVERSATIONS["four turns"]] * 4
    )
]
PAIRS = [
    {"prompt": f"Question {number}?", "chosen": "Yes, " * (number % 3 + 1), "rejected": "No.", "id": number}
    for number in range(6)
]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("model"), "bytes", plain("chatml"))


def write(path, records):
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(records), path, row_group_size=5)
    else:
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def prepare(inputs, out, model, **options):
    options = {"tokenizer": model, "chat": True, "workers": 0, "val": None, **options}
    return tokenfeed.prepare(inputs, out, **options)


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_a_store_of_conversations(tmp_path, model, name):
    """Tokens and masks of all documents, with their payloads; documents, packed rows and windows are masked."""
    report = prepare(write(tmp_path / name, RECORDS), tmp_path / "store", model, keep=["id"], slice_bytes=700)
    assert (report.total.documents, report.total.malformed) == (12, 0)
    store = tokenfeed.open(tmp_path / "store")
    ids, mask, offsets = render(RECORDS, model)
    view = store.documents()
    batch = view[:]
    np.testing.assert_array_equal(batch.tokens, ids)
    np.testing.assert_array_equal(batch.column("loss_mask"), mask)
    np.testing.assert_array_equal(batch.offsets, offsets)
    assert batch.payloads == [{"id": number} for number in range(12)]
    assert batch.loss_mask.sum() == mask.sum()  # no conversation begins with what is learned
    assert view.spec.loss_mask == store.windows(8).spec.loss_mask == "loss_mask"
    store.pack(150)
    rows = store.packed(150)[:]
    assert rows.loss_mask.sum() == mask.sum()
    everything = store.packed(150, loss_mask=None)[:]
    assert everything.loss_mask.sum() == ids.size - 12
    shards = len(store.shards)
    assert shards > 1
    assert prepare(tmp_path / name, tmp_path / "store", model, keep=["id"], slice_bytes=700).total.documents == 12
    with pytest.raises((ArgumentError, StateError, PlanMismatchError), match="chat"):
        prepare(tmp_path / name, tmp_path / "store", model, keep=["id"], slice_bytes=700, chat=Chat(train_on="all"))


def test_text_mixes_with_conversations_once_it_has_a_mask(tmp_path, model):
    @tokenfeed.preparation.annotates(columns={"loss_mask": "bool"})
    def learn_all(text, kept, tokens):
        return {"loss_mask": np.ones(len(tokens), bool)}

    prepare(write(tmp_path / "a.jsonl", RECORDS), tmp_path / "chat", model)
    path = write(tmp_path / "b.jsonl", [{"text": "Hello there!"}] * 9)
    for name, function in (("bare", None), ("masked", learn_all)):
        tokenfeed.prepare(path, tmp_path / name, tokenizer=model, map=function, workers=0, val=None)
    views = {name: tokenfeed.open(tmp_path / name).documents() for name in ("chat", "bare", "masked")}

    def loader(other):
        parts = {"chat": (views["chat"], 0.5), "text": (views[other], 0.5)}
        return tokenfeed.Loader(tokenfeed.mix(parts, allow_different_tokenizers=True), batch_size=4, prefetch=0)

    assert next(loader("masked")).loss_mask.any()
    with pytest.raises(ArgumentError, match=r"'loss_mask' in one|no loss mask in the other|'loss_mask'} in one"):
        loader("bare")


def test_val_holds_out_the_same_conversations_on_both_roads(tmp_path, model):
    records = [{"messages": [said("user", f"{number}"), TURNS[1]]} for number in range(60)]
    prepare(write(tmp_path / "a.jsonl", records), tmp_path / "store", model, val=0.2)
    sizes = tokenfeed.open(tmp_path / "store", split="all").splits
    assert 0 < sizes["val"].items < sizes["train"].items
    options = {"batch_size": 1, "length": 64, "epochs": 1, "rank": 0, "world_size": 1, "prefetch": 0}
    for split in ("train", "val"):
        feed = stream_chat(tmp_path / "a.jsonl", model, split=split, val=0.2, **options)
        assert sum(int(batch.lengths.sum()) for batch in feed) == sizes[split].items


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_streams_of_files_and_of_lists_agree_and_resume(tmp_path, model, name):
    write(tmp_path / name, RECORDS)
    options = {"batch_size": 2, "length": 150, "rank": 0, "world_size": 1, "prefetch": 0}
    finite = stream_chat(tmp_path / name, model, val=None, epochs=1, **options)
    ids, mask, _ = render(RECORDS, model)
    batches = list(finite)
    assert sum(int(batch.lengths.sum()) for batch in batches) == ids.size
    assert sum(int(batch.loss_mask.sum()) for batch in batches) == mask.sum()
    listed = stream_chat(RECORDS, model, epochs=1, **options)
    assert sum(int(batch.loss_mask.sum()) for batch in listed) == mask.sum()
    endless = stream_chat(tmp_path / name, model, val=None, **options)
    batches = [next(endless) for _ in range(5)]
    resumed = stream_chat([tmp_path / name], model, val=None, **options)
    resumed.load_state_dict(json.loads(json.dumps(batches[1].state)))
    for batch in batches[2:]:
        again = next(resumed)
        np.testing.assert_array_equal(again.inputs, batch.inputs)
        np.testing.assert_array_equal(again.loss_mask, batch.loss_mask)
    with pytest.raises(PlanMismatchError, match="chat"):
        stream_chat(tmp_path / name, model, val=None, chat=Chat(train_on="all"), **options).load_state_dict(
            batches[1].state
        )


def test_pairs_are_documents_with_two_sides(tmp_path, model):
    prepare(write(tmp_path / "a.jsonl", PAIRS), tmp_path / "store", model, keep=["id"], val=0.3)
    store = tokenfeed.open(tmp_path / "store", split="all")
    ids, mask, offsets = render(PAIRS, model)
    batch = store.documents()[:]
    assert len(batch) == 6
    order = [payload["id"] for payload in batch.payloads]
    for row, number in enumerate(order):
        sample = batch[row]
        start, middle, stop = offsets[2 * number : 2 * number + 3]
        np.testing.assert_array_equal(sample.tokens, ids[start:stop])
        np.testing.assert_array_equal(sample.column("loss_mask"), mask[start:stop])
        sides = [(span.payload, span.start, span.stop) for span in sample.spans["sides"]]
        assert sides == [("chosen", 0, middle - start), ("rejected", middle - start, stop - start)]
    with pytest.raises(ArgumentError, match=r"preference pairs, and the rejected side would be learned"):
        tokenfeed.Loader(store.documents(), 2)
    next(tokenfeed.Loader(store.documents(spans=["sides"]), 2))
    with pytest.raises(FormatError, match=r"is a pair of chosen and rejected.*layout='chosen'"):
        next(stream_chat(PAIRS, model, batch_size=1, length=64, rank=0, world_size=1))


def test_errors_name_the_file_and_the_line(tmp_path, model):
    bad = [RECORDS[0], {"messages": [TURNS[0]]}, RECORDS[1], {"text": "x"}]
    write(tmp_path / "a.jsonl", bad)
    with pytest.raises(FormatError, match=r"a\.jsonl, line 2: there is nothing to learn: no message from assistant"):
        prepare(tmp_path / "a.jsonl", tmp_path / "store", model)
    report = prepare(tmp_path / "a.jsonl", tmp_path / "skipped", model, on_error="skip")
    assert (report.total.documents, report.total.malformed) == (2, 2)
    assert "line 4: there is no 'messages'" in report.problems[1]
    refusing = tmp_path / "refusing.jinja"
    refusing.write_text(
        "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + plain("chatml")
    )
    with pytest.raises(
        FormatError, match=r"a\.jsonl, line 3: .*refusing\.jinja cannot write this conversation: no system"
    ):
        prepare(write(tmp_path / "a.jsonl", RECORDS[:1] * 2 + RECORDS[1:]), tmp_path / "other", model, chat=refusing)
    write(tmp_path / "a.parquet", [*RECORDS[:1] * 7, *RECORDS[1:]])
    with pytest.raises(FormatError, match=r"a\.parquet, row group 1, row 2: .*no system"):
        prepare(tmp_path / "a.parquet", tmp_path / "other2", model, chat=refusing)
    options = {"batch_size": 1, "length": 64, "rank": 0, "world_size": 1, "val": None}
    with pytest.raises(FormatError, match=r"a\.jsonl, line 3: .*no system"):
        list(stream_chat(tmp_path / "a.jsonl", model, chat=refusing, epochs=1, **options))
    with pytest.raises(FormatError, match=r"b\.jsonl: the fields text are of no layout that is known"):
        prepare(write(tmp_path / "b.jsonl", [{"text": "x"}]), tmp_path / "other3", model)


def test_options_that_do_not_go_together(tmp_path, model):
    path = write(tmp_path / "a.jsonl", RECORDS)
    with pytest.raises(ArgumentError, match="bos does not go with chat"):
        prepare(path, tmp_path / "store", model, bos="<s>")
    (tmp_path / "text.txt").write_text("x")
    with pytest.raises(ArgumentError, match=r"text\.txt cannot be read"):
        prepare(tmp_path / "text.txt", tmp_path / "store", model)
    without = tmp_path / "without"
    save_model(without, "bytes")
    with pytest.raises(ArgumentError, match=r"there is no chat template: none beside the tokenizer.*--template"):
        prepare(path, tmp_path / "store", without)
    nanochat = golden_tokenizer()
    prepare(write(tmp_path / "b.jsonl", RECORDS[:1]), tmp_path / "nanochat", nanochat)
    np.testing.assert_array_equal(
        tokenfeed.open(tmp_path / "nanochat").documents()[:].tokens, render(RECORDS[:1], nanochat)[0]
    )
    with pytest.raises(ArgumentError, match="train_on is 'last'; nanochat's way"):
        prepare(path, tmp_path / "store", nanochat, chat=Chat(train_on="last"))


def test_the_command(tmp_path, model):
    write(tmp_path / "a.jsonl", RECORDS)
    (tmp_path / "own.jinja").write_text(plain("qwen3"))
    out, given = str(tmp_path / "store"), ["prepare", str(tmp_path / "a.jsonl"), "--tokenizer", str(model), "-o"]
    options = ["--template", str(tmp_path / "own.jinja"), "--train-on", "user,assistant", "--layout", "messages"]
    options += ["--set", "enable_thinking=false", "--json", "-w", "0"]
    made = CliRunner().invoke(app, [*given, out, "--chat", *options])
    assert made.exit_code == 0, made.output
    store = tokenfeed.open(out, split="all")
    chat = Chat(ChatTemplate(plain("qwen3")), train_on={"user", "assistant"}, variables={"enable_thinking": False})
    assert store.documents()[:].column("loss_mask").sum() == render(RECORDS, model, chat=chat)[1].sum()
    wrong = CliRunner().invoke(app, [*given, out, "--train-on", "all"])
    assert "add --chat" in str(wrong.exception)
