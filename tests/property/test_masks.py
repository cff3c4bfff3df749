"""Documents that are masked: every sample comes as before, and no target of theirs counts from then on."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tokenfeed
from oracle import Leg, run
from tokenfeed.errors import ArgumentError
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
    views = [store.packed(6) if "packed" in kind else store.windows(4) for store in stores]
    return tokenfeed.mix({"a": (views[0], 2), "b": (views[1], 1)}) if "mixture" in kind else views[1]


@pytest.mark.parametrize("kind", ["windows", "packed", "mixture", "packed mixture"])
@given(
    documents=st.lists(st.sampled_from([n for n, length in enumerate(LENGTHS) if length > 1]), min_size=1, max_size=4),
    at=st.integers(0, 30),
    history=HISTORY,
)
def test_no_target_of_a_masked_document_counts(stores, kind, documents, at, history):
    view = view_of(stores, kind)
    mixture = Mixture.of(view)
    joined, starts = mixture.joined, np.cumsum([0, *map(len, mixture.views.values())])
    skip = tokenfeed.Skip(documents=documents, mask=True, source="b" if "mixture" in kind else None)
    masked_plan = tokenfeed.Plan.of(view).amend(at, skip=skip)

    def see(batch):
        masked = np.isin(batch.targets, 1000 + np.array(documents)) & (batch.samples >= at)[:, None]
        plain = joined.read(batch.indices + starts[batch.sources]).loss_mask
        assert (batch.loss_mask == (~masked if plain is None else plain & ~masked)).all()

    rows = run(history, lambda **options: Loader(masked_plan, **options), see=see)
    assert rows == run(history, lambda **options: Loader(view, **options))


def test_a_mask_is_part_of_the_plan(stores):
    view = stores[0].windows(4)
    masked = Loader(view, 4, rank=0, world_size=1, prefetch=0)
    masked.amend(8, skip=tokenfeed.Skip(documents=[4], mask=True))
    plain = Loader(view, 4, rank=0, world_size=1, prefetch=0)
    states = [next(masked).state for _ in range(3)]
    plain.load_state_dict(states[2])
    assert plain.plan.skips == masked.plan.skips
    assert tokenfeed.Plan.from_json(masked.plan.to_json()).skips == masked.plan.skips


def test_masks_that_cannot_be(stores):
    with pytest.raises(ArgumentError, match="goes with documents"):
        tokenfeed.Skip(indices=[1], mask=True)
    with pytest.raises(ArgumentError, match="whole documents"):
        Loader(stores[0].documents(), 4, skips=[tokenfeed.Skip(documents=[1], mask=True)])
    with pytest.raises(ArgumentError, match="no sample touches"):
        Loader(stores[0].windows(4), 4, skips=[tokenfeed.Skip(documents=[2], mask=True)])
    mixture = tokenfeed.mix({"a": (stores[0].windows(4), 1), "b": (stores[0].windows(4), 1)})
    with pytest.raises(ArgumentError, match="of which source"):
        Loader(mixture, 4, skips=[tokenfeed.Skip(documents=[1], mask=True)])
