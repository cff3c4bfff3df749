"""Runs of Megatron-core and OLMo-core, as `half_epochs.py` recorded the real ones: we deliver the rest."""

import json
import pickle
import shutil
from fractions import Fraction

import numpy as np
import pytest

import tokenfeed
from adopting import RECORDED, RUNS, adopt, check
from tokenfeed.errors import ArgumentError, CorruptionError, NotFoundError, PlanMismatchError, StateError
from tokenfeed.runs.adoption import adopt_megatron, adopt_olmo, count_blend
from tokenfeed.store.spec import ViewSpec


@pytest.mark.parametrize("kind", RUNS)
def test_the_rest_of_an_epoch(kind):
    adopted, rest = check(kind, RECORDED / kind)
    if kind.startswith("olmo"):  # what fills no batch of four there, is delivered here
        assert 0 <= len(adopted.unseen) - len(rest) < 4
        tokens = np.concatenate([np.fromfile(path, np.uint16) for path in sorted((RECORDED / kind).glob("part-*.npy"))])
        assert np.isin(adopted.view[:].tokens, tokens).all()
        assert np.unique(adopted.view[:].tokens).size == adopted.view[:].tokens.size
    else:
        assert len(adopted.unseen) == len(rest)


def test_inputs_of_megatron_are_every_token_once():
    """All tokens of its split, but for those at the end that fill no sample."""
    adopted = adopt("megatron", RECORDED / "megatron")
    inputs = adopted.view[:].inputs
    assert np.unique(inputs).size == inputs.size
    assert adopted.view.mean_length == Fraction(16)
    np.testing.assert_array_equal(adopted.unseen[0].tokens[:16], adopted.unseen.read([0]).inputs[0])
    assert adopted.unseen.read([0]).loss_mask is None


@pytest.mark.parametrize("kind", RUNS)
def test_adopted_views_open_again(kind):
    view = adopt(kind, RECORDED / kind).unseen
    spec = ViewSpec.from_json(json.loads(json.dumps(view.spec.to_json())))
    assert spec == view.spec
    for again in (
        pickle.loads(pickle.dumps(view)),
        pickle.loads(view.data.opening and pickle.dumps(view.data)).view(spec),
    ):
        np.testing.assert_array_equal(again[:].tokens, view[:].tokens)
    state = next(tokenfeed.Loader(view, 4)).state
    assert len(json.dumps(state)) <= 300
    tokenfeed.Loader(view, 2).load_state_dict(state)


@pytest.mark.parametrize("kind", ["megatron", "olmo"])
def test_documents_of_adopted_samples(kind, tmp_path):
    """Spans are told by piece, and a document by the samples that touch it."""
    shutil.copytree(RECORDED / kind, tmp_path / kind)
    view = adopt(kind, tmp_path / kind).unseen
    assert view.locate(0)
    if kind == "olmo":
        return
    batch = view.read(np.arange(len(view)))
    touched = {}
    for row, spans in enumerate(batch.spans["documents"]):
        for span in spans:
            touched.setdefault(span.number, set()).add(row)
    for document in range(0, len(view.span_table), 3):
        assert set(view.samples_touching([document]).tolist()) == touched.get(document, set())


def test_a_blend_goes_on_as_a_mixture(tmp_path):
    first, second = (adopt(kind, RECORDED / kind).unseen for kind in ("megatron", "megatron-epochs"))
    mixture = tokenfeed.mix({"a": (first, 1.0), "b": (second, 1.0)})
    batch = next(tokenfeed.Loader(mixture, 2 * len(first)))
    assert sorted(batch.tokens[batch.sources == 0].tolist()) == sorted(first[:].tokens.tolist())
    rows = {tuple(row) for row in second[:].tokens.tolist()}
    assert {tuple(row) for row in batch.tokens[batch.sources == 1].tolist()} <= rows
    np.save(tmp_path / "dataset_index.npy", np.array([0, 1, 1, 0, 2], np.int16))
    assert count_blend(tmp_path / "dataset_index.npy", 4) == [2, 2, 0]
    with pytest.raises(ArgumentError, match="consumed is 6"):
        count_blend(tmp_path / "dataset_index.npy", 6)


def test_a_run_over_the_rest_is_a_set_too(tmp_path):
    view = adopt("megatron", RECORDED / "megatron").unseen
    loader = tokenfeed.Loader(view, 4, run=tmp_path / "run.jsonl")
    taken = [row for _ in range(3) for row in next(loader).tokens.tolist()]
    loader.state_dict()
    rest = view.unseen(tokenfeed.Run(tmp_path / "run.jsonl"))
    assert sorted(taken + rest[:].tokens.tolist()) == sorted(view[:].tokens.tolist())


@pytest.mark.parametrize("kind", ["megatron", "olmo"])
def test_what_does_not_fit(kind, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(RECORDED / kind, folder)
    for consumed in (-1, 1000):
        with pytest.raises(ArgumentError, match=rf"consumed is {consumed:,}"):
            adopt(kind, folder, consumed)
    view = adopt(kind, folder).unseen
    (path,) = [*folder.glob("*shuffle_index.npy"), *folder.glob("global_indices*")]
    good = path.read_bytes()
    path.write_bytes(good[:-4] + good[-8:-4])  # an entry twice
    with pytest.raises(CorruptionError, match="names a sample twice"):
        adopt(kind, folder)
    with pytest.raises(PlanMismatchError, match="order of another run"):
        pickle.loads(pickle.dumps(view))
    path.write_bytes(good[:-4] + b"\xff\xff\xff\x7f")
    with pytest.raises(CorruptionError, match="names sample 2,147,483,647"):
        adopt(kind, folder)
    path.write_bytes(good[:-2])
    with pytest.raises(CorruptionError):
        adopt(kind, folder)
    path.unlink()
    with pytest.raises((NotFoundError, ValueError)):
        adopt(kind, folder)


def test_the_index_of_another_data_file(tmp_path):
    """Its samples would not be whole, or it names sequences that are not there."""
    folder = tmp_path / "copy"
    shutil.copytree(RECORDED / "megatron", folder)
    tokens = np.arange(3000, dtype=np.uint16)
    lengths = np.full(60, 50, np.int32)
    header = b"MMIDIDX\0\0" + np.array([1], "<u8").tobytes() + b"\x08" + np.array([60, 61], "<u8").tobytes()
    pointers, documents = (np.arange(60) * 100).astype("<i8"), np.arange(61).astype("<i8")
    (folder / "data.idx").write_bytes(header + lengths.tobytes() + pointers.tobytes() + documents.tobytes())
    tokens.tofile(folder / "data.bin")
    with pytest.raises(PlanMismatchError, match=r"index of another data file"):
        adopt("megatron", folder)
    with pytest.raises(PlanMismatchError, match=r"74 samples, and .* has 80"):
        adopt_olmo(sorted((RECORDED / "olmo").glob("part-*")), next((RECORDED / "olmo").glob("global*")), length=15,
                   consumed=3, dtype="uint16")  # fmt: skip
    with pytest.raises(NotFoundError, match=r"has no file \*-train-shuffle_index\.npy"):
        adopt_megatron(folder / "data.idx", tmp_path, consumed=1)
    with pytest.raises(StateError, match="view"):
        ViewSpec.from_json({"kind": "order", "base": None})
