"""Flat batches, slices for context parallelism, loss weights, and the number of targets of a step."""

import itertools
import re

import numpy as np
import pytest
import torch

import tokenfeed
import tokenfeed.torch
from tokenfeed.errors import ArgumentError, TokenfeedError
from tokenfeed.store.forms import ContextParallel

T = 16


def write(path, lengths, *, seed=0, **more):
    """Documents of these lengths; `more` are functions of a length that make further columns."""
    rng = np.random.default_rng(seed)
    columns = {"tokens": "uint16", **{name: dtype for name, (dtype, _) in more.items()}}
    with tokenfeed.Writer(path, columns=columns, spans={"documents": "json"}) as writer:
        for number, length in enumerate(lengths):
            items = {"tokens": rng.integers(1, 1000, length)}
            items |= {name: make(length, rng) for name, (_, make) in more.items()}
            writer.append(items, documents=number)
    return tokenfeed.open(path)


def some_lengths(count=40, largest=40, seed=1):
    return np.random.default_rng(seed).integers(1, largest, count).tolist()


WEIGHT = {"weight": ("float32", lambda length, rng: rng.integers(0, 5, length) / 4)}
LEARN = {"learn": ("uint8", lambda length, rng: rng.integers(0, 2, length))}


def attend(query, key, value, visible):
    scores = np.where(visible, query @ key.T, -np.inf)
    weights = np.exp(scores - scores.max(1, keepdims=True))
    return weights / weights.sum(1, keepdims=True) @ value


def embed(tokens, positions):
    """Queries, keys and values of tokens at positions: plain tables."""
    rng = np.random.default_rng(7)
    tables, places = rng.normal(size=(3, 1000, 8)), rng.normal(size=(1000, 8))
    return [table[tokens] + places[positions] for table in tables]


def places_of(cp, bounds, length):
    """Where the slots of a rank lie in the whole batch: every piece of it is cut into chunks, some of which it has."""
    found = []
    pieces = itertools.pairwise(bounds) if cp.by == "document" else itertools.pairwise(range(0, bounds[-1] + 1, length))
    for start, stop in pieces:
        chunks = np.split(np.arange(start, stop), cp.size * (2 if cp.layout == "zigzag" else 1))
        chosen = [cp.rank, len(chunks) - 1 - cp.rank] if cp.layout == "zigzag" else [cp.rank]
        found += [chunks[each] for each in chosen]
    return np.concatenate(found)


@pytest.mark.parametrize("by", ["row", "document"])
@pytest.mark.parametrize(("layout", "size"), [("zigzag", 2), ("zigzag", 4), ("contiguous", 2)])
@pytest.mark.parametrize("kind", ["windows", "packed", "documents"])
def test_attention_over_slices_is_that_of_the_undivided_rows(tmp_path, kind, layout, size, by):
    """What every rank computes of its own queries, with the keys of all, is what one device computes of all rows."""
    store = write(tmp_path, some_lengths())
    store.pack(T)
    view = {"windows": store.windows(T), "packed": store.packed(T), "documents": store.documents()}[kind]
    batch = next(tokenfeed.Loader(view, 3, seed=2))
    flat = batch.flat
    document = np.repeat(np.arange(flat.cu_seqlens.size - 1), np.diff(flat.cu_seqlens))
    numbers = np.arange(document.size)
    visible = (document[:, None] == document) & (numbers[:, None] >= numbers)
    whole = attend(*embed(flat.inputs, flat.position_ids), visible)

    ranks = [ContextParallel(rank, size, layout=layout, by=by) for rank in range(size)]
    slices = [batch.slice(cp) for cp in ranks]
    bounds = slices[0].cu_seqlens_padded
    length = slices[0].inputs.shape[-1] * size
    places = [places_of(cp, bounds, length) for cp in ranks]
    parts = [[array.reshape(-1) for array in (part.inputs, part.targets, part.position_ids)] for part in slices]
    all_places = np.concatenate(places)
    assert sorted(all_places) == list(range(bounds[-1]))
    _, keys, values = embed(*(np.concatenate(each) for each in list(zip(*parts, strict=True))[::2]))
    documents = np.searchsorted(bounds, all_places, side="right")
    outcome, targets = np.empty((bounds[-1], 8)), np.empty(bounds[-1], np.int64)
    for mine, (inputs, following, positions) in zip(places, parts, strict=True):
        own = np.searchsorted(bounds, mine, side="right")
        visible = (own[:, None] == documents) & (mine[:, None] >= all_places)
        outcome[mine] = attend(embed(inputs, positions)[0], keys, values, visible)
        targets[mine] = following
    within = np.arange(bounds[-1]) - (bounds[np.searchsorted(bounds, np.arange(bounds[-1]), side="right") - 1])
    if by == "document":
        lengths = np.diff(slices[0].cu_seqlens)
        real = within < np.repeat(lengths, np.diff(bounds))
    else:
        real = (np.arange(1, length + 1) < batch.lengths[:, None]).reshape(-1)
    np.testing.assert_allclose(outcome[real], whole, rtol=1e-9)
    np.testing.assert_array_equal(targets[real], flat.targets)
    masks = [(part.loss_mask, real[mine]) for part, mine in zip(slices, places, strict=True)]
    assert not any(mask.reshape(-1)[~is_real].any() for mask, is_real in masks if mask is not None)


def test_slices_are_those_of_torch():
    """The layout of `torch.distributed.tensor.experimental.context_parallel`, whose order torch computes."""
    from torch.distributed.tensor.experimental._context_parallel._load_balancer import _HeadTailLoadBalancer

    for size in (1, 2, 4):
        order = _HeadTailLoadBalancer(24 * size, size, "cpu")._generate_indices()
        ours = np.concatenate([ContextParallel(rank, size).indices(24 * size) for rank in range(size)])
        assert ours.tolist() == order.reshape(-1).tolist()


def thd_indices(bounds, size, rank):
    """Transformer Engine's rule: half of what a rank has of a sequence comes from each of two chunks, counted from both
    ends; and where a sequence begins in the slice is where it begins in the whole, divided by the number of ranks.
    """
    found = []
    for slot in range(bounds[-1] // size):
        which = np.searchsorted(bounds // size, slot, side="right") - 1
        begin, half = bounds[which], (bounds[which + 1] - bounds[which]) // size // 2
        within = slot - begin // size
        chunk = rank if within < half else 2 * size - 1 - rank
        found.append(begin + chunk * half + within % half)
    return found


def test_documents_are_divided_as_transformer_engine_does(tmp_path):
    batch = write(tmp_path, [5, 9, 1, 2, 30]).documents().read([0, 1, 2, 3, 4])
    for size in (2, 4):
        slices = [batch.slice(ContextParallel(rank, size, by="document")) for rank in range(size)]
        bounds = slices[0].cu_seqlens_padded
        assert np.diff(slices[0].cu_seqlens).tolist() == [4, 8, 1, 29]  # a document of one item has no target
        assert (np.diff(bounds) % (2 * size) == 0).all()
        whole = np.zeros(bounds[-1], np.int64)
        for start, (first, stop) in zip(bounds, itertools.pairwise(batch.flat.cu_seqlens), strict=False):
            whole[start : start + stop - first] = batch.flat.inputs[first:stop]
        for rank, part in enumerate(slices):
            assert part.inputs.tolist() == whole[thd_indices(bounds, size, rank)].tolist()


def test_only_the_slice_crosses_the_bus(tmp_path):
    store = write(tmp_path, [4000])
    size, length, rows = 4, 512, 4
    sent = {}
    for form in ("padded", "row", "document"):
        options = {} if form == "padded" else {"cp": ContextParallel(1, size, by=form)}
        batches = tokenfeed.torch.to_device(tokenfeed.Loader(store.windows(length), rows, prefetch=0), "cpu", **options)
        next(batches)
        sent[form] = batches.bytes_sent
    assert sent["padded"] == rows * (length + 1) * 2
    for form in ("row", "document"):  # its two chunks of each row, each with a target more; and 16 bytes a run
        assert sent[form] <= rows * (length // size + 2) * 2 + rows * 2 * 16 + 200


def test_padding_never_crosses_the_bus(tmp_path):
    store = write(tmp_path, [3, 4000, 5, 2, 800])
    padded, flat = (
        tokenfeed.torch.to_device(
            tokenfeed.Loader(store.documents(), 5, shuffle=False, prefetch=0), "cpu", flat=is_flat
        )
        for is_flat in (False, True)
    )
    whole, batch = next(padded), next(flat)
    assert batch.inputs.shape == batch.targets.shape == batch.position_ids.shape == (4805,)
    assert batch.loss_mask is None
    assert batch.loss_weights is None
    assert flat.bytes_sent <= 4810 * 2 + 200 < padded.bytes_sent
    for tensor in (whole.cu_seqlens, whole.position_ids, batch.cu_seqlens, batch.position_ids):
        assert isinstance(tensor, torch.Tensor)
        assert tensor.dtype == torch.int32
    np.testing.assert_array_equal(batch.inputs, whole.inputs[whole.loss_mask])
    np.testing.assert_array_equal(batch.targets, whole.targets[whole.loss_mask])
    assert batch.cu_seqlens.tolist() == [0, 2, 4001, 4005, 4006, 4805]
    assert batch.max_seqlen == 3999
    given = batch.as_dict()
    assert given["cu_seqlens"] is batch.cu_seqlens
    assert given["max_seqlen"] == 3999


def test_the_adapters_take_the_form(tmp_path):
    store = write(tmp_path, some_lengths(), **WEIGHT)
    view = store.documents(columns=["weight"], loss_weights="weight")
    given = next(iter(tokenfeed.torch.as_dataset(tokenfeed.Loader(view, 4, prefetch=0), flat=True)))
    batch = next(tokenfeed.Loader(view, 4, prefetch=0))
    for name in ("inputs", "targets", "loss_mask", "loss_weights", "position_ids", "cu_seqlens"):
        np.testing.assert_array_equal(given[name], getattr(batch.flat, name))
    beside = np.concatenate([batch[row].column("weight")[:-1] for row in range(4)])
    np.testing.assert_array_equal(given["weight"], beside)


@pytest.mark.parametrize("kind", ["documents", "packed"])
def test_a_batch_without_rows(tmp_path, kind):
    store = write(tmp_path, [5, 1, 1])
    store.pack(T)
    view = store.documents() if kind == "documents" else store.packed(T)
    loader = tokenfeed.Loader(view, 1, epochs=1, rank=3, world_size=4, prefetch=0)
    batch = next(loader)
    assert (len(batch), batch.num_targets) == (0, 0)
    for cp in (None, ContextParallel(1, 2), ContextParallel(1, 2, by="document")):
        flat = batch.flat if cp is None else batch.slice(cp)
        sent = next(
            tokenfeed.torch.to_device(
                tokenfeed.Loader(view, 1, epochs=1, rank=3, world_size=4), "cpu", flat=cp is None, cp=cp
            )
        )
        assert flat.inputs.size == sent.inputs.numel() == sent.targets.numel() == 0
        assert flat.cu_seqlens.tolist() == sent.cu_seqlens.tolist() == [0]
        assert flat.max_seqlen == sent.max_seqlen == 0
    one = store.documents().read([1])
    assert one.flat.cu_seqlens.tolist() == [0]
    assert one.flat.inputs.size == 0


def test_rows_of_a_store_without_documents_are_parts_of_their_own(tmp_path):
    with tokenfeed.Writer(tmp_path, columns={"tokens": "uint16"}) as writer:
        writer.append({"tokens": np.arange(100)})
    batch = tokenfeed.open(tmp_path).windows(8).read([0, 3])
    assert batch.flat.cu_seqlens.tolist() == [0, 8, 16]
    assert batch.flat.inputs.tolist() == [*range(8), *range(24, 32)]
    assert tokenfeed.open(tmp_path).windows(8, extra=0).read([1]).flat.targets is None


@pytest.mark.parametrize(
    ("length", "cp", "told"),
    [
        (20, {"rank": 0, "size": 4}, "multiple of 2 · size = 8. Make rows of 16 or 24"),
        (20, {"rank": 0, "size": 3, "layout": "contiguous"}, "multiple of size = 3. Make rows of 18 or 21"),
        (6, {"rank": 0, "size": 4}, "Make rows of 8"),
        (16, {"rank": 2, "size": 2}, "rank 2 of 2"),
        (16, {"rank": 0, "size": 0}, "rank 0 of 0"),
        (16, {"rank": 0, "size": 2, "layout": "ring"}, "'zigzag' or 'contiguous'"),
        (16, {"rank": 0, "size": 2, "by": "token"}, "'row' or 'document'"),
    ],
)
def test_rows_that_cannot_be_divided(tmp_path, length, cp, told):
    view = write(tmp_path, [100]).windows(length)
    with pytest.raises(ArgumentError, match=re.escape(told)):
        view.read([0]).slice(ContextParallel(**cp))


def test_context_parallel_ranks_with_rows_of_their_own_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    view = write(tmp_path, [100]).windows(8)
    with pytest.raises(ArgumentError, match=r"4 ranks, and 2 context-parallel .* 8 processes, but there are 4"):
        tokenfeed.torch.to_device(tokenfeed.Loader(view, 2), "cpu", cp=ContextParallel(1, 2))
    tokenfeed.torch.to_device(tokenfeed.Loader(view, 2, rank=0, world_size=2), "cpu", cp=ContextParallel(1, 2))
    with pytest.raises(ArgumentError, match="flat=True goes without cp"):
        tokenfeed.torch.to_device(tokenfeed.Loader(view, 2), "cpu", flat=True, cp=ContextParallel(1, 2))


@pytest.mark.parametrize("kind", ["windows", "documents", "packed"])
@pytest.mark.parametrize("weight", [np.nan, -0.5, np.inf])
def test_weights_that_cannot_be(tmp_path, kind, weight):
    lengths = [10, 10, 10]
    made = iter([np.ones(10), np.array([1, 1, 1, weight, *[1] * 6]), np.ones(10)])
    store = write(tmp_path, lengths, weight=("float32", lambda *_: next(made)))
    store.pack(9)
    view = {"windows": store.windows, "packed": store.packed}.get(kind, lambda _, **options: store.documents(**options))
    batch = view(9, loss_weights="weight").read([0, 1])
    (sample,) = [row for row in range(2) if store.windows(29).read([0]).tokens[0, 13] in batch[row].tokens]
    place = batch[sample].tokens.tolist().index(store.windows(29).read([0]).tokens[0, 13])
    for member in ("loss_weights", "loss_mask", "flat", "num_targets"):
        with pytest.raises(ArgumentError, match=rf"is {weight} at item {place} of sample {sample} \(item 13 of shard"):
            getattr(batch, member)


def test_weights_of_the_wrong_shape(tmp_path):
    with tokenfeed.Writer(tmp_path / "b", columns={"tokens": "uint16", "pair": ("float32", (2,))}) as writer:
        writer.append({"tokens": np.arange(10), "pair": np.ones((10, 2))})
        with pytest.raises(TokenfeedError, match="9"):
            writer.append({"tokens": np.arange(10), "pair": np.ones((9, 2))})
    store = tokenfeed.open(tmp_path / "b")
    with pytest.raises(ArgumentError, match=r"loss_weights is 'pair', a column of .* one number for each item"):
        store.windows(4, loss_weights="pair")
    with pytest.raises(TokenfeedError, match="no column 'weight'"):
        store.windows(4, loss_weights="weight")


VIEWS = {
    "windows": lambda store: store.windows(T),
    "masked windows": lambda store: store.windows(T, loss_mask="learn"),
    "documents": lambda store: store.documents(),
    "documents with weights": lambda store: store.documents(loss_weights="weight"),
    "packed": lambda store: store.packed(T),
    "packed with weights": lambda store: store.packed(T, loss_weights="weight", loss_mask="learn"),
}


def counted(batch):
    return batch.targets.size if batch.loss_mask is None else int(batch.loss_mask.sum())


@pytest.mark.parametrize("kind", VIEWS)
def test_the_targets_of_a_step_are_known_without_communication(tmp_path, kind):
    """On any number of ranks, of samples masked in part, and where a finite run ends within a step."""
    store = write(tmp_path, some_lengths(), **WEIGHT, **LEARN)
    store.pack(T)
    view = VIEWS[kind](store)
    whole = view.read(np.arange(len(view)))
    mask = np.ones(whole.targets.shape, bool) if whole.loss_mask is None else whole.loss_mask
    np.testing.assert_array_equal(view.num_targets(np.arange(len(view))), mask.sum(1))
    for world_size in (1, 3):
        loaders = [
            tokenfeed.Loader(view, 4, epochs=1, mask=[3, 17], rank=rank, world_size=world_size, prefetch=0)
            for rank in range(world_size)
        ]
        for batches in zip(*loaders, strict=True):
            assert [batch.num_targets for batch in batches] == [counted(batch) for batch in batches]
            assert {batch.step_targets for batch in batches} == {sum(map(counted, batches))}
            assert batches[0].part(0, 1).step_targets == batches[0].step_targets


@pytest.mark.parametrize(
    "options",
    [{"batch_size": 2}, {"tokens": 60, "balance": True}, {"batch_size": 3, "balance": tokenfeed.Cost(1, 0.1)}],
)
def test_micro_batches_are_counted_with_their_step(tmp_path, options):
    """Also after a checkpoint, from which steps are counted anew."""
    view = write(tmp_path, some_lengths(), **LEARN).documents(loss_mask="learn")
    loaders = [
        tokenfeed.Loader(view, accumulate=3, epochs=1, rank=rank, world_size=2, prefetch=0, **options)
        for rank in range(2)
    ]
    for loader in loaders:
        loader.load_state_dict(loaders[0].plan.state(7))
    batches = list(zip(*loaders, strict=True))
    assert len(batches) > 3
    for first in range(0, len(batches), 3):
        step = [batch for micro in batches[first : first + 3] for batch in micro]
        assert {batch.step_targets for batch in step} == {sum(map(counted, step))}


def test_a_loss_over_ranks_is_exactly_that_of_one_process(tmp_path):
    """Every rank divides the sum of its losses by the targets of the whole step; the sum is the mean over all rows."""
    store = write(tmp_path, some_lengths(), **WEIGHT)
    view = store.documents(loss_weights="weight")

    def total(batch):
        losses = np.cos(batch.flat.inputs * 3.0 + batch.flat.targets)  # of any model
        return float((losses * batch.flat.loss_weights).sum())

    alone = tokenfeed.Loader(view, 12, rank=0, world_size=1)
    loaders = [tokenfeed.Loader(view, 2, accumulate=3, rank=rank, world_size=2) for rank in range(2)]
    for _ in range(6):
        whole, batches = next(alone), [next(loader) for _ in range(3) for loader in loaders]
        expected = total(whole) / whole.num_targets
        assert sum(total(batch) / batch.step_targets for batch in batches) == pytest.approx(expected, rel=1e-12)
        by_count = [total(batch) / max(1, batch.num_targets) for batch in batches]
        assert np.mean(by_count) != pytest.approx(expected, rel=1e-3)  # what every rank would compute by itself


def test_batches_that_know_no_step(tmp_path):
    batch = write(tmp_path, [20]).windows(4).read([0])
    assert batch.num_targets == 4
    with pytest.raises(ArgumentError, match="only batches of a Loader"):
        batch.step_targets  # noqa: B018
