"""Documents that are masked: every sample comes as before, and no target of theirs counts from then on."""

import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tokenfeed
from oracle import Leg, run
from tokenfeed.errors import ArgumentError, NotFoundError, PlanMismatchError, SampleIndexError
from tokenfeed.loader.loader import Loader
from tokenfeed.plan.mixing import Mixture

LENGTHS = [5, 3, 0, 1, 9, 4, 4, 14, 2, 6, 1, 8]
HISTORY = st.lists(
    st.builds(Leg, st.integers(1, 4), st.integers(1, 5), st.integers(0, 5), st.sampled_from([0, 2])),
    min_size=1,
    max_size=3,
)


@pytest.fixture(scope="module")
def stores():
    """Item values tell store and document: 1000 · store + document."""
    with tempfile.TemporaryDirectory() as folder:
        opened = []
        for number in range(2):
            path = Path(folder, str(number))
            with tokenfeed.Writer(
                path, columns={"tokens": "uint16"}, spans={"documents": "json"}, shard_bytes=40, sync=False
            ) as writer:
                for document, length in enumerate(LENGTHS):
                    writer.append({"tokens": np.full(length, 1000 * number + document)}, documents=document)
            opened.append(tokenfeed.open(path))
            opened[-1].pack(6)
        yield opened


def view_of(stores, kind):
    made = {"packed": lambda store: store.packed(6), "documents": lambda store: store.documents()}
    views = [made.get(kind.split()[0], lambda store: store.windows(4))(store) for store in stores]
    return tokenfeed.mix({"a": (views[0], 2), "b": (views[1], 1)}) if "mixture" in kind else views[1]


@pytest.mark.parametrize("kind", ["windows", "packed", "documents", "mixture", "packed mixture"])
@given(
    documents=st.lists(st.sampled_from([n for n, length in enumerate(LENGTHS) if length > 1]), min_size=1, max_size=4),
    at=st.integers(0, 30),
    history=HISTORY,
)
def test_no_target_of_a_masked_document_counts(stores, kind, documents, at, history):
    view = view_of(stores, kind)
    mixture = Mixture.of(view)
    joined, starts = mixture.joined, np.cumsum([0, *map(len, mixture.views.values())])
    masked_plan = tokenfeed.Plan.of(view).amend(at, mask={"b": documents} if "mixture" in kind else documents)

    def see(batch):
        masked = np.isin(batch.targets, 1000 + np.array(documents)) & (batch.samples >= at)[:, None]
        plain = joined.read(batch.indices + starts[batch.sources]).loss_mask
        assert (batch.loss_mask == (~masked if plain is None else plain & ~masked)).all()

    rows = run(history, lambda **options: Loader(masked_plan, **options), see=see)
    assert rows == run(history, lambda **options: Loader(view, **options))


def test_a_mask_is_part_of_the_plan(stores):
    view = stores[0].windows(4)
    masked = Loader(view, 4, rank=0, world_size=1, prefetch=0)
    masked.amend(8, mask=[4])
    plain = Loader(view, 4, rank=0, world_size=1, prefetch=0)
    states = [next(masked).state for _ in range(3)]
    plain.load_state_dict(states[2])
    assert plain.plan.masks == masked.plan.masks
    assert tokenfeed.Plan.from_json(masked.plan.to_json()).masks == masked.plan.masks


def test_a_mask_in_a_file(stores, tmp_path):
    """Many documents lie in a file, which a plan knows again, and which must not change."""
    path, view = tmp_path / "masked.npy", stores[0].windows(4)
    with pytest.raises(ArgumentError, match=r"every checkpoint would hold: save them once"):
        Loader(view, 4, mask=np.arange(1000))
    np.save(path, [4, 0, 4])
    plan = tokenfeed.Plan.of(view, mask=path)
    assert tokenfeed.Plan.of(view, mask=[0, 4]).parts(9) == plan.parts(9)
    again = tokenfeed.Plan.from_json(json.loads(json.dumps(plan.to_json())))
    assert again.masks[0][2].documents.tolist() == [0, 4]
    again = tokenfeed.Plan.from_json(plan.to_json())
    np.save(path, [4, 5])
    with pytest.raises(PlanMismatchError, match="holds other documents than when the run masked them"):
        next(Loader(again.over(plan.given), 4))


@pytest.mark.parametrize(
    ("mask", "told"),
    [
        (5, "expected numbers of documents"),
        ([], "expected numbers of documents"),
        ("12", "no such file"),
        ([0.5], "expected numbers"),
        ([-1], "numbered from 0 on"),
        ([2], "no sample of the data touches these documents"),
        ([1000], "1000"),
    ],
)
def test_masks_that_cannot_be(stores, mask, told):
    with pytest.raises((ArgumentError, SampleIndexError, NotFoundError), match=told):
        Loader(stores[0].windows(4), 4, mask=mask)
    mixture = tokenfeed.mix({"a": (stores[0].windows(4), 1), "b": (stores[0].windows(4), 1)})
    with pytest.raises(ArgumentError, match=r"of which source\? Give mask={name"):
        Loader(mixture, 4, mask=[1])
