"""The contract of a batch: one suite for everything that delivers rows, in host memory and for every framework."""

import itertools
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import tokenfeed
import tokenfeed.torch
from golden import GOLDEN, golden_tokenizer
from tiers import pick
from tokenfeed.errors import ArgumentError
from tokenfeed.loader.collate import pad
from tokenfeed.store.batch import Batch
from tokenfeed.store.forms import ContextParallel
from tokenfeed.text.streaming.chat import stream_chat

B, T = 4, 32

CONVERSATIONS = [
    {"messages": [{"role": "user", "content": "count " * (n % 4 + 1)}, {"role": "assistant", "content": "one " * n}]}
    for n in range(1, 14)
]


def first_half(values):
    return values[: len(values) // 2]


def rest(values):
    return values[len(values) // 2 :]


@pytest.fixture
def store(tmp_path):
    rng = np.random.default_rng(0)
    columns = {"tokens": "uint16", "learn": "uint8", "weight": "float32"}
    with tokenfeed.Writer(tmp_path / "store", columns=columns, spans={"documents": "json", "turns": "json"}) as writer:
        for number in range(60):
            length = int(rng.integers(2, 90))
            items = {"tokens": rng.integers(1, 1000, length), "learn": rng.integers(0, 2, length)}
            items["weight"] = rng.integers(0, 5, length) / 4
            first, second = ({name: part(values) for name, values in items.items()} for part in (first_half, rest))
            writer.append(first, documents={"number": number}, turns="user")
            writer.extend(second, turns="assistant")
    store = tokenfeed.open(tmp_path / "store")
    store.pack(T)
    store.pack(T, table="turns")
    return store


def mixture(view):
    return tokenfeed.mix({"a": (view, 2), "b": (view, 1)})


MASK = [3, 17, 40]

# What delivers rows: a function of the store and the options that every loader takes.
DELIVERS = {
    "windows": lambda store, **options: tokenfeed.Loader(store.windows(T), B, **options),
    "windows with a mask": lambda store, **options: tokenfeed.Loader(store.windows(T, loss_mask="learn"), B, **options),
    "windows with more columns": lambda store, **options: tokenfeed.Loader(
        store.windows(T, columns=["learn"], spans=["documents"]), B, **options
    ),
    "masked windows": lambda store, **options: tokenfeed.Loader(store.windows(T), B, mask=MASK, **options),
    "documents": lambda store, **options: tokenfeed.Loader(store.documents(), B, **options),
    "balanced documents": lambda store, **options: tokenfeed.Loader(store.documents(), B, balance=True, **options),
    "documents with a mask": lambda store, **options: tokenfeed.Loader(
        store.documents(loss_mask="learn"), B, **options
    ),
    "packed": lambda store, **options: tokenfeed.Loader(store.packed(T), B, **options),
    "packed by turns": lambda store, **options: tokenfeed.Loader(store.packed(T, table="turns"), B, **options),
    "masked packed": lambda store, **options: tokenfeed.Loader(
        store.packed(T, loss_mask="learn"), B, mask=MASK, **options
    ),
    "windows with weights": lambda store, **options: tokenfeed.Loader(
        store.windows(T, loss_weights="weight"), B, **options
    ),
    "documents with weights": lambda store, **options: tokenfeed.Loader(
        store.documents(loss_weights="weight"), B, **options
    ),
    "masked packed with weights": lambda store, **options: tokenfeed.Loader(
        store.packed(T, loss_weights="weight", loss_mask="learn"), B, mask=MASK, **options
    ),
    "mixture of windows": lambda store, **options: tokenfeed.Loader(mixture(store.windows(T)), B, **options),
    "mixture of packed": lambda store, **options: tokenfeed.Loader(mixture(store.packed(T)), B, **options),
    "best fit": lambda store, **options: tokenfeed.stream(
        GOLDEN / "data", golden_tokenizer(), batch_size=B, length=T, **options
    ),
    "mixture of streams": lambda store, **options: tokenfeed.stream(
        {"a": (GOLDEN / "data", 2), "b": (GOLDEN / "data", 1)}, golden_tokenizer(), batch_size=B, length=T, **options
    ),
    "finite best fit": lambda store, **options: tokenfeed.stream(
        GOLDEN / "data", golden_tokenizer(), batch_size=B, length=T, epochs=1, **options
    ),
    "concat": lambda store, **options: tokenfeed.stream(
        GOLDEN / "data", golden_tokenizer(), batch_size=B, length=T, packing="concat", **options
    ),
    "chat": lambda store, **options: stream_chat(
        CONVERSATIONS, golden_tokenizer(), batch_size=B, length=64, too_long="drop", **options
    ),
}
HAS_MASK = {
    "windows with a mask", "masked windows", "documents", "balanced documents", "documents with a mask", "packed",
    "packed by turns", "masked packed", "mixture of packed", "best fit", "finite best fit", "chat",
    "mixture of streams", "windows with weights", "documents with weights", "masked packed with weights",
}  # fmt: skip


def on_host(loader):
    return loader


def with_torch(loader):
    return tokenfeed.torch.to_device(loader, "cpu")


def with_jax(loader):
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    import tokenfeed.jax

    mesh = jax.make_mesh((1,), ("data",))
    return tokenfeed.jax.to_arrays(loader, NamedSharding(mesh, PartitionSpec("data")))


PLACED = {"jax": with_jax} if "CONTRACT_OF_JAX" in os.environ else {"host": on_host, "torch": with_torch}
FEW = ("windows with more columns", "documents with a mask", "masked packed with weights", "best fit")
"""With JAX in the fast tier: each compiles for its shapes."""
KINDS = FEW if os.environ.get("CONTRACT_OF_JAX") == "few" else DELIVERS


@pytest.mark.skipif("CONTRACT_OF_JAX" in os.environ, reason="this is the process that it starts")
def test_batches_as_jax_arrays():
    """In a process of its own: where JAX is imported, no process can be forked any more."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:xdist",
        "-p",
        "no:cacheprovider",
        __file__,
        "-k",
        "test_a_batch[",
    ]
    environment = {**os.environ, "CONTRACT_OF_JAX": pick("few", "all")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert f"{len(pick(FEW, DELIVERS))} passed" in done.stdout


@pytest.mark.parametrize("placed", PLACED)
@pytest.mark.parametrize("kind", KINDS)
def test_a_batch(store, kind, placed):
    """Every member of the interface, against the same batch on the host and against what it means."""
    loader = PLACED[placed](DELIVERS[kind](store, prefetch=2))
    reference = DELIVERS[kind](store, prefetch=0)
    for step in range(3):
        batch, host = next(loader), next(reference)
        assert isinstance(batch, Batch)
        inputs, targets = batch
        assert len(batch) == len(host) == B
        assert tuple(inputs.shape) == tuple(targets.shape) == tuple(host.inputs.shape) == (B, host.length)
        for ours, theirs in ((inputs, host.inputs), (targets, host.targets), (batch.inputs, host.inputs)):
            np.testing.assert_array_equal(np.asarray(ours), theirs)
        if placed == "torch":
            assert (inputs.dtype, targets.dtype) == (torch.int32, torch.int64)
            assert inputs.is_contiguous()
            assert targets.is_contiguous()
        check_mask(batch, host, kind, placed)
        check_weights(batch, host, kind)
        check_numbers(batch, step)
        check_spans(batch)
        check_flat(batch.flat, host)
        if step == 0 and (placed != "jax" or kind == "packed"):  # JAX takes them as the host has them
            check_slices(batch, host)
        if placed == "jax" and "documents" in kind:
            with pytest.raises(ArgumentError, match="documents of different lengths"):
                batch.column("tokens")
        else:
            check_columns(batch, host)
            check_dict(batch)
    resumed = DELIVERS[kind](store, prefetch=0)
    resumed.load_state_dict(json.loads(json.dumps(batch.state)))
    assert loader.state_dict() == batch.state == host.state
    np.testing.assert_array_equal(np.asarray(next(loader).inputs), next(resumed).inputs)
    assert repr(host)


def check_mask(batch, host, kind, placed):
    """None where every target counts, else one truth value a target; no padding counts."""
    assert (host.loss_mask is not None) == (kind in HAS_MASK)
    if host.loss_mask is None:
        assert batch.loss_mask is None or (placed == "jax" and np.asarray(batch.loss_mask).all())
        return
    mask = np.asarray(batch.loss_mask)
    assert (mask.dtype, mask.shape) == (np.bool_, tuple(batch.targets.shape))
    np.testing.assert_array_equal(mask, host.loss_mask)
    is_padding = np.arange(1, mask.shape[1] + 1) >= batch.lengths[:, None]
    assert not mask[is_padding].any()
    assert mask.any()


def check_weights(batch, host, kind):
    """None where every target counts as 1, else a number a target, and 0 where the mask leaves it out."""
    mask = host.loss_mask
    counted = host.targets.size if mask is None else int(mask.sum())
    assert batch.num_targets == host.num_targets == counted
    if mask is None:
        assert host.loss_weights is None
        assert batch.loss_weights is None or (np.asarray(batch.loss_weights) == 1).all()
        return
    weights = np.asarray(batch.loss_weights)
    assert (weights.dtype, weights.shape) == (np.float32, mask.shape)
    np.testing.assert_array_equal(weights, host.loss_weights)
    np.testing.assert_array_equal(weights != 0, mask)
    if "with weights" in kind:
        stored = host.rows.block(host.rows.column("weight"), 0, len(host.rows))[host.samples % len(host.rows)]
        np.testing.assert_array_equal(weights, np.where(mask, stored[:, 1 : host.length + 1], 0))
        assert len(np.unique(weights)) == 5
    else:
        assert set(np.unique(weights)) <= {0, 1}


def plain_parts(host):
    """(row, start, stop) of the parts of documents in the inputs, without padding; row after row."""
    real = np.clip(host.lengths - 1, 0, host.length)
    parts = []
    for row, spans in enumerate(host.spans_of()):
        edges = sorted({0, int(real[row]), *(edge for span in spans for edge in (span.start, span.stop))})
        edges = [edge for edge in edges if edge <= real[row]]
        parts += [(row, *pair) for pair in itertools.pairwise(edges)]
    return parts


def check_flat(flat, host):
    """The padded rows, less their padding."""
    parts = plain_parts(host)
    rows = np.concatenate([np.full(stop - start, row) for row, start, stop in parts])
    places = np.concatenate([np.arange(start, stop) for _, start, stop in parts])
    total = rows.size
    for ours, theirs in ((flat.inputs, host.inputs), (flat.targets, host.targets)):
        assert ours.shape == (total,)
        np.testing.assert_array_equal(np.asarray(ours), theirs[rows, places])
    for ours, theirs in ((flat.loss_mask, host.loss_mask), (flat.loss_weights, host.loss_weights)):
        if ours is None:
            assert theirs is None or theirs[rows, places].all()
        else:
            np.testing.assert_array_equal(np.asarray(ours), theirs[rows, places])
    counts = [stop - start for _, start, stop in parts]
    bounds = np.asarray(flat.cu_seqlens)
    assert bounds.dtype == np.int32
    assert bounds.tolist() == np.cumsum([0, *counts]).tolist() == np.asarray(flat.cu_seqlens_padded).tolist()
    assert flat.max_seqlen == max(counts)
    assert np.asarray(flat.position_ids).tolist() == [place for count in counts for place in range(count)]


def check_slices(batch, host):
    """Rows are divided as arrays of torch are; what was sent and put together again is the whole."""
    for size, layout in ((2, "zigzag"), (4, "contiguous")):
        for by in ("row", "document"):
            ranks = [ContextParallel(rank, size, layout=layout, by=by) for rank in range(size)]
            slices = [batch.slice(cp) for cp in ranks]
            if by == "document":
                check_documents(slices, ranks, host)
                continue
            unit = ranks[0].num_chunks
            is_ragged = host.rows.layout.length is None
            length = -(-host.length // unit) * unit if is_ragged else host.length
            has_target = np.arange(1, host.length + 1) < host.lengths[:, None]
            for cp, part in zip(ranks, slices, strict=True):
                for ours, theirs in (
                    (part.inputs, np.where(has_target, host.inputs, 0) if is_ragged else host.inputs),
                    (part.targets, host.targets),
                    (part.loss_mask, host.loss_mask),
                    (part.loss_weights, host.loss_weights),
                    (part.position_ids, host.spans_of(length=length).position_ids()),
                ):
                    if theirs is None:
                        theirs = np.ones(host.targets.shape)
                    theirs = np.pad(theirs, [(0, 0), (0, length - theirs.shape[1])])
                    chunks = np.split(theirs, cp.num_chunks, axis=1)
                    expected = np.concatenate([chunks[each] for each in cp.chunks], axis=1)
                    if ours is None:  # the slice of this rank has no padding
                        assert expected.all()
                        continue
                    np.testing.assert_array_equal(np.asarray(ours), expected)


def check_documents(slices, ranks, host):
    parts = plain_parts(host)
    unit = ranks[0].num_chunks
    counts = [stop - start for _, start, stop in parts]
    padded = [-(-count // unit) * unit for count in counts]
    for cp, part in zip(ranks, slices, strict=True):
        assert np.asarray(part.cu_seqlens).tolist() == np.cumsum([0, *counts]).tolist()
        assert np.asarray(part.cu_seqlens_padded).tolist() == np.cumsum([0, *padded]).tolist()
        assert part.max_seqlen == max(padded)
        expected = {"inputs": [], "targets": [], "loss_mask": [], "loss_weights": [], "position_ids": []}
        for (row, start, stop), width in zip(parts, padded, strict=True):
            rest = (0, width - (stop - start))
            ones = np.ones(host.inputs.shape)
            mask, weights = (ones if each is None else each for each in (host.loss_mask, host.loss_weights))
            whole = {"inputs": host.inputs, "targets": host.targets, "loss_mask": mask != 0, "loss_weights": weights}
            cut = {name: np.pad(each[row, start:stop], rest) for name, each in whole.items()}
            for name, each in (cut | {"position_ids": np.arange(width)}).items():
                expected[name] += [np.split(each, unit)[chunk] for chunk in cp.chunks]
        for name, each in expected.items():
            ours = getattr(part, name)
            if ours is None:
                assert np.concatenate(each).all()
            else:
                np.testing.assert_array_equal(np.asarray(ours), np.concatenate(each))


def check_numbers(batch, step):
    for numbers in (batch.samples, batch.epochs, batch.sources, batch.lengths, batch.indices):
        assert (numbers.dtype, numbers.shape) == (np.int64, (B,))
    assert batch.samples.tolist() == list(range(step * B, (step + 1) * B))
    assert batch.epoch == batch.epochs[0] >= 0
    assert set(batch.sources.tolist()) <= set(range(len(batch.source_names)))
    assert (batch.lengths >= 0).all()


def check_spans(batch):
    """Parts of rows, laid end to end, fill the inputs; positions count within them."""
    spans, length = batch.spans["documents"], batch.inputs.shape[1]
    assert len(spans) == B
    bounds = np.asarray(batch.cu_seqlens)
    assert bounds.dtype == np.int32
    assert (bounds[0], bounds[-1]) == (0, B * length)
    assert (np.diff(bounds) > 0).all()
    assert batch.max_seqlen == np.diff(bounds).max()
    positions = np.asarray(batch.position_ids)
    assert positions.shape == (B, length)
    assert (np.flatnonzero(positions.reshape(-1) == 0) == bounds[:-1]).all()


def check_columns(batch, host):
    assert list(batch.columns) == list(host.columns)
    for name, column in batch.columns.items():
        np.testing.assert_array_equal(np.asarray(column), host.column(name))
        np.testing.assert_array_equal(np.asarray(batch.column(name)), host.column(name))
    np.testing.assert_array_equal(np.asarray(batch.tokens), host.tokens)


def check_dict(batch):
    """Nothing is left out."""
    given = batch.as_dict()
    assert set(given) == {
        *batch.columns, "inputs", "targets", "loss_mask", "loss_weights", "samples", "epochs", "sources", "lengths",
        "state",
    }  # fmt: skip
    for name in ("inputs", "targets", "samples", "epochs", "sources", "lengths"):
        np.testing.assert_array_equal(np.asarray(given[name]), np.asarray(getattr(batch, name)))
    assert (given["loss_mask"] is None) == (batch.loss_mask is None)
    if batch.loss_mask is not None:
        np.testing.assert_array_equal(np.asarray(given["loss_mask"]), np.asarray(batch.loss_mask))
    assert given["state"] == batch.state


def as_dicts(loader, adapter):
    """Dictionaries as an adapter delivers them."""
    if adapter == "node":
        from torchdata.nodes import Loader

        return iter(Loader(tokenfeed.torch.as_node(loader)))
    from torch.utils.data import DataLoader

    return iter(DataLoader(tokenfeed.torch.as_dataset(loader), batch_size=None))


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
@pytest.mark.parametrize("adapter", ["dataset", "node"])
@pytest.mark.parametrize("kind", DELIVERS)
def test_adapters_drop_nothing(store, kind, adapter):
    delivered = as_dicts(DELIVERS[kind](store, prefetch=0), adapter)
    reference = tokenfeed.torch.to_device(DELIVERS[kind](store, prefetch=0), "cpu")
    for _ in range(2):
        given, expected = next(delivered), next(reference).as_dict()
        assert given.keys() == expected.keys()
        for name, value in expected.items():
            if value is None or name == "state":
                assert given[name] == value
            else:
                np.testing.assert_array_equal(given[name].numpy(), value.numpy())


@pytest.mark.parametrize("place", [on_host, with_torch])
@pytest.mark.parametrize("kind", DELIVERS)
def test_a_batch_that_is_held_never_changes(store, kind, place):
    """Whatever is held, a batch, an array, a part of one or a tensor, keeps its memory."""
    loader = place(DELIVERS[kind](store, prefetch=3))
    held, copies = [], []
    for number in range(30):
        batch = next(loader)
        view = [batch.inputs, batch.targets[1:], batch.column("tokens").reshape(-1)[::2], batch.tokens][number % 4]
        held.append(view)
        copies.append(np.asarray(view).copy())
        del batch
    for view, copy in zip(held, copies, strict=True):
        np.testing.assert_array_equal(np.asarray(view), copy)


@pytest.mark.parametrize("kind", ["windows", "documents", "packed", "mixture of windows", "best fit", "chat"])
def test_collate_gets_the_batch_and_its_result_comes_along(store, kind):
    def collate(batch):
        assert isinstance(batch, Batch)
        return SimpleNamespace(samples=batch.samples, total=int(np.asarray(batch.targets).sum()))

    for batch in (next(loader) for loader in [DELIVERS[kind](store, prefetch=2, collate=collate)] for _ in range(4)):
        assert batch.data.samples.tolist() == batch.samples.tolist()
        assert batch.data.total == int(batch.targets.sum())


def test_an_empty_batch_has_every_member(store):
    """The last step of a finite pass, on a rank that has no rows left."""
    for view in (store.windows(T), store.packed(T), store.documents()):
        ranks = len(view) - 1
        loader = tokenfeed.Loader(view, 1, epochs=1, rank=ranks - 1, world_size=ranks, prefetch=0)
        for batch in loader:
            mask = batch.loss_mask
        assert len(batch) == len(batch.samples) == len(batch.lengths) == batch.inputs.shape[0] == 0
        assert batch.inputs.shape == batch.targets.shape
        assert mask is None or mask.shape == batch.targets.shape
        assert batch.cu_seqlens.tolist() == [0]
        assert batch.epoch == -1
        assert batch.as_dict()["state"] == loader.state_dict()


def test_documents_and_padding_by_collate_agree(store):
    """Inputs of documents are what `pad` gives, less the last item."""
    loader = tokenfeed.Loader(store.documents(), B, collate=pad())
    for batch in (next(loader) for _ in range(5)):
        np.testing.assert_array_equal(batch.inputs, batch.data.columns["tokens"][:, :-1])
        np.testing.assert_array_equal(batch.targets, batch.data.columns["tokens"][:, 1:])
        np.testing.assert_array_equal(batch.loss_mask, batch.data.mask[:, 1:])


def test_a_mask_names_spans_of_the_table_that_was_packed(store):
    """Numbers of masked documents are those of the view's own table, not of `documents`."""
    view = store.packed(T, table="turns")
    masked = tokenfeed.Loader(view, B, epochs=1, mask=[5, 60])
    left_out = 0
    for batch, plain in zip(masked, tokenfeed.Loader(view, B, epochs=1), strict=True):
        is_masked = np.isin(batch.span_numbers("turns")[:, 1:], [5, 60])
        np.testing.assert_array_equal(batch.loss_mask, plain.loss_mask & ~is_masked)
        left_out += int((plain.loss_mask & is_masked).sum())
    lengths = store.spans["turns"].locate(np.array([5, 60]))[1]
    assert 0 < left_out < lengths.sum()
