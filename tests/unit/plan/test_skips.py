"""Skips by example: documents by payload, what they say of themselves, and why nothing is found."""

from collections.abc import Sequence
from typing import get_type_hints

import numpy as np
import pytest

import tokenfeed
from tokenfeed.errors import ArgumentError, MissingError


@pytest.fixture
def store(tmp_path):
    for split in ("train", "val"):
        with tokenfeed.Writer(
            tmp_path / "store",
            columns={"tokens": "uint16"},
            spans={"documents": "json"},
            split=split,
            sync=False,
            mode="append",
        ) as writer:
            for number in range(12):
                payload = {"id": f"{split}-{number}", "kind": "odd" if number % 2 else "even"} if number else None
                writer.append({"tokens": np.full(8, number)}, documents=payload)
    return tokenfeed.open(tmp_path / "store", split="train")


def test_documents_are_skipped_by_their_payload(store):
    view = store.documents()
    plan = tokenfeed.Plan.of(view)
    found = plan.amend(5, skip=tokenfeed.Skip(where={"id": "train-3"}))
    assert found == plan.amend(5, skip=tokenfeed.Skip(documents=[3]))
    several = tokenfeed.Plan.of(view, skips=[tokenfeed.Skip(where=lambda each: each and each["kind"] == "odd")])
    assert several.skips[0].documents == (1, 3, 5, 7, 9, 11)
    assert tokenfeed.Plan.from_json(several.to_json()) == several
    skip = tokenfeed.Skip(where={"kind": "even"}, mask=True)
    with tokenfeed.Loader(store.windows(4), 4, skips=[skip], rank=0, world_size=1) as loader:
        batch = next(loader)
    np.testing.assert_array_equal(batch.loss_mask, (batch.targets % 2 == 1) | (batch.targets == 0))
    with pytest.raises(ArgumentError, match=r"samples of .* hold other documents, too; mask it, with mask=True"):
        tokenfeed.Plan.of(store.windows(4), skips=tokenfeed.Skip(documents=[3]))


def test_a_skip_that_finds_nothing_says_why(store):
    view = store.windows(4)
    for where, told in (
        ({"nope": 1}, "no document has such a payload"),
        ({"id": "train-99"}, "no document has such a payload"),
        (lambda _: False, "no document has such a payload"),
    ):
        with pytest.raises(ArgumentError, match=f"skips nothing: {told}"):
            tokenfeed.Plan.of(view, skips=[tokenfeed.Skip(where=where)])
    with pytest.raises(MissingError, match="no span table"):
        tokenfeed.Plan.of(_without_documents(store), skips=[tokenfeed.Skip(where={"id": 1})])
    with pytest.raises(ArgumentError, match=r"only a view can tell.*use Plan.of"):
        tokenfeed.Plan(tokenfeed.Plan.of(view).sources).amend(0, skip=tokenfeed.Skip(where={"id": 1}))


def test_a_search_that_finds_nothing_says_why(store, tmp_path):
    plan = tokenfeed.Plan.of(store.documents(), skips=tokenfeed.Skip(documents=[3]))
    with tokenfeed.Loader(plan, 4, run=tmp_path / "run.jsonl", rank=0, world_size=1) as loader:
        next(loader)
    run = tokenfeed.Run(tmp_path / "run.jsonl")
    assert run.find(where={"id": "train-4"}).why == ""
    for where in ({"nope": 1}, {"id": "val-3"}):
        assert run.find(where=where) == []
        assert run.find(where=where).why == "no document has such a payload"
    assert run.find(3).why == "no row of these epochs delivers it"
    assert run.find(4, epochs=[]) == []


def _without_documents(store):
    path = store.paths[0] + "-plain"
    with tokenfeed.Writer(path, columns={"tokens": "uint16"}, sync=False) as writer:
        writer.append({"tokens": np.arange(50)})
    return tokenfeed.open(path).windows(4)


@pytest.mark.parametrize(
    ("skip", "told"),
    [
        (tokenfeed.Skip(documents=[9, 3], source="web"), "Skip(documents=(3, 9), source='web')"),
        (tokenfeed.Skip(documents=[3], mask=True), "Skip(documents=(3,), mask=True)"),
        (tokenfeed.Skip(indices=range(1000)), "Skip(indices=[0, 1, 2, 3, 4, 5, 6, 7, … 992 more])"),
        (tokenfeed.Skip(where={"id": 5}), "Skip(where={'id': 5})"),
    ],
)
def test_what_skips_say(skip, told):
    assert repr(skip) == told


def test_lists_pass_a_type_checker():
    """The fields were declared as tuples."""
    hints = get_type_hints(tokenfeed.Skip)
    assert hints["documents"] == hints["indices"] == Sequence[int]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, "needs documents, indices or where"),
        ({"indices": [3], "mask": True}, "mask=True goes with documents or where"),
    ],
)
def test_bad_skips(options, told):
    with pytest.raises(ArgumentError, match=told):
        tokenfeed.Skip(**options)
