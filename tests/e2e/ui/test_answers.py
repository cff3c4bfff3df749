"""What a run and a folder of text are told to be, against the run and the stream themselves."""

from dataclasses import asdict

import numpy as np
import pytest

import tokenfeed
from golden import golden_texts, golden_tokenizer


def test_history(clients, made):
    told, run = clients["run"].ask("run"), tokenfeed.Run(made.run)
    assert [start["step"] for start in told["starts"]] == [0, 30, 50]
    assert [(leg["world_size"], leg["batch_size"]) for leg in told["legs"]] == [(2, "4"), (4, "4"), (3, "2")]
    assert [leg["samples"] for leg in told["legs"]] == [leg.start.samples for leg in run.legs]


@pytest.mark.parametrize("step", [0, 29, 30, 51, 1000])
def test_a_step(clients, made, step):
    told = clients["run"].ask("trace", step=step)["rows"]
    rows = tokenfeed.Run(made.run).trace(step)
    assert [(row["sample"], row["rank"], row["index"]) for row in told] == [
        (row.sample, row.rank, row.index) for row in rows
    ]
    assert [[one["number"] for one in row["documents"]] for row in told] == [
        [span.number for span in row.documents] for row in rows
    ]


def test_a_document(clients, made):
    told = clients["run"].ask("find", document=7, epochs=2)
    seen = tokenfeed.Run(made.run).find(7, epochs=range(2))
    assert told["seen"] == [asdict(each) for each in seen]
    assert told["total"] == len(seen) > 1


def test_a_mixture(clients, made):
    plan = tokenfeed.Run(made.mixture).starts[-1].plan
    for samples in (0, 1, 999):
        told = clients["mixture"].ask("ledger", samples=samples)["sources"]
        assert [(one["name"], one["samples"]) for one in told] == [
            (each.source, each.samples) for each in plan.ledger(samples)
        ]
        assert all(abs(one["samples"] - one["target"]) <= 1 for one in told)


@pytest.mark.parametrize("packing", ["best_fit", "concat"])
def test_the_flow_is_the_stream(clients, made, packing):
    told = clients["text"].ask("flow", packing=packing, step=2, world_size=2, batch_size=3, length=64)
    texts = golden_texts()
    for rank in range(2):
        feed = tokenfeed.stream(
            made.text,
            golden_tokenizer(),
            batch_size=3,
            length=64,
            split="all",
            packing=packing,
            buffer_size=64,
            refill_size=32,
            rank=rank,
            world_size=2,
            prefetch=0,
        )
        batch = [batch for _, batch in zip(range(3), feed, strict=False)][-1]
        rows = told["ranks"][rank]["rows"]
        assert [[token[0] for token in row["tokens"]] for row in rows] == batch.tokens.tolist()
        assert [row["sample"] for row in rows] == batch.samples.tolist()
        pieces = [(piece["start"], piece["stop"]) for row in rows for piece in row["pieces"]]
        spans = batch.spans["documents"]
        assert pieces == list(zip(spans.starts.tolist(), spans.stops.tolist(), strict=True))
        feed.close()
    assert all(any(text.startswith(one["text"][:600]) for text in texts) for one in told["documents"])


def test_documents_of_a_row_group(clients):
    told = clients["text"].ask("text", file=0, group=0)
    texts = golden_texts()
    for one in told["documents"]:
        assert one["text"] == texts[one["row"]][:600]
        assert [token[0] for token in one["tokens"]] == golden_tokenizer().encode(one["text"]).tolist()
    assert clients["text"].ask("text", file=0, group=10**6)["documents"] == []


def test_samples_are_those_of_the_store(clients, made):
    told = clients["store"].ask("sample", length=64, index=9)
    row = tokenfeed.open(made.web).windows(64)[9]
    assert [token[0] for token in told["tokens"]] == row.tokens.tolist()
    assert np.allclose(told["columns"]["weight"], row.column("weight"))
    assert "".join(text for _, text, kind in told["tokens"] if kind != 2)


def test_what_is_not_there_is_said(clients):
    assert "not a run file" in clients["store"].ask("run", status=400)["message"]
    assert "not a folder of text" in clients["store"].ask("flow", status=400)["message"]
    assert "no second run" in clients["mixture"].ask("compare", status=400)["message"]
