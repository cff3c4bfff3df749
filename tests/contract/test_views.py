"""The contract of a view: windows, documents, packed rows and joined views answer the same questions alike."""

import json
import pickle
from fractions import Fraction

import numpy as np
import pytest

import tokenfeed
from tokenfeed.errors import ArgumentError, SampleIndexError, StateError
from tokenfeed.plan.plan import Plan
from tokenfeed.runs.sets import select
from tokenfeed.store.spec import ViewSpec
from tokenfeed.store.subset import join_views


def chosen(view, *, seen):
    """A third of a view, or the rest of it."""
    return select(view, Plan.of(view, seed=3), len(view) // 3, [], None, seen=seen)


MAKE = {
    "windows": lambda store: store.windows(7),
    "windows with two items more": lambda store: store.windows(4, extra=2),
    "windows with more": lambda store: store.windows(9, extra=0, columns=["frame"], spans=["concepts"]),
    "documents": lambda store: store.documents(),
    "concepts": lambda store: store.documents("concepts", columns=["frame"]),
    "packed": lambda store: store.packed(30),
    "packed concepts": lambda store: store.packed(30, table="concepts"),
    "unseen windows": lambda store: chosen(store.windows(7), seen=False),
    "seen documents": lambda store: chosen(store.documents(columns=["frame"]), seen=True),
    "unseen packed": lambda store: chosen(store.packed(30), seen=False),
    "unseen of unseen": lambda store: chosen(chosen(store.documents(), seen=False), seen=False),
    "joined windows": lambda store: store.windows(7).join([store.windows(7), store.windows(7)]),
    "joined documents": lambda store: store.documents().join([store.documents()]),
    "joined packed": lambda store: store.packed(30).join([store.packed(30)]),
    "joined with unseen": lambda store: join_views(
        [store.windows(7), chosen(store.windows(7), seen=False), chosen(store.windows(7), seen=True)]
    ),
}
ALONE = [name for name in MAKE if "joined" not in name]


@pytest.fixture
def store(store_path):
    store = tokenfeed.open(store_path)
    store.pack(30)
    store.pack(30, table="concepts")
    return store


@pytest.mark.parametrize("kind", MAKE)
def test_samples_are_what_the_shards_hold(store, plain, kind):
    """`locate` names the very items that are read, in order, shard by shard."""
    view = MAKE[kind](store)
    begins = {shard.name: sum(each.num_items for each in store.shards[:n]) for n, shard in enumerate(store.shards)}
    tokens = plain.tokens
    for index in {0, 1, len(view) // 3, len(view) // 2, len(view) - 2, len(view) - 1}:
        places = view.locate(index)
        items = [tokens[begins[shard] + start : begins[shard] + stop] for shard, start, stop in places]
        expected = np.concatenate([np.empty(0, np.uint16), *items])
        sample, length = view[index], int(view.lengths(np.array([index]))[0])
        np.testing.assert_array_equal(sample.tokens[:length], expected)
        assert not sample.tokens[length:].any()
        assert sample.index == index


@pytest.mark.parametrize("kind", MAKE)
def test_documents_are_in_the_samples_that_they_touch(store, kind):
    view = MAKE[kind](store)
    table = view.span_table.name
    batch = view.read(np.arange(len(view)))
    touched = {}
    for row, spans in enumerate(batch.spans[table]):
        for span in spans:
            touched.setdefault(span.number, set()).add(row)
    for document in (0, 1, 2, 50, len(view.span_table) // 2, len(view.span_table) - 1):
        assert set(view.samples_touching([document]).tolist()) == touched.get(document, set()), document
    other = {"documents": "concepts", "concepts": "documents"}[table]
    covering = {}
    for row, spans in enumerate(batch.spans[other]):
        for span in spans:
            covering.setdefault(span.number, set()).add(row)
    for number in (0, 5, 40):
        assert set(view.samples_touching([number], table=other).tolist()) == covering.get(number, set()), number
    with pytest.raises(SampleIndexError):
        view.samples_touching([len(view.span_table)])
    pair = view.samples_touching([3, 40])
    assert pair.tolist() == sorted({*touched.get(3, set()), *touched.get(40, set())})


@pytest.mark.parametrize("kind", MAKE)
def test_the_mean_length_is_exact(store, kind):
    view = MAKE[kind](store)
    lengths = view.lengths(np.arange(len(view)))
    extra = view.spec.unit.extra if view.spec.unit.kind == "windows" else 0
    assert view.mean_length == Fraction(int((lengths - extra).sum()), len(view))


def test_the_mean_length_of_nothing(tmp_path):
    with tokenfeed.Writer(tmp_path, columns={"tokens": "u2"}, spans={"documents": None}):
        pass
    assert tokenfeed.open(tmp_path).documents().mean_length == 0


@pytest.mark.parametrize("kind", MAKE)
def test_numbers_and_slices(store, kind):
    view = MAKE[kind](store)
    np.testing.assert_array_equal(view[-1].tokens, view[len(view) - 1].tokens)
    part = view[2:9:3]
    assert part.indices.tolist() == [2, 5, 8]
    np.testing.assert_array_equal(part.tokens, view.read([2, 5, 8]).tokens)
    assert len(view[:0]) == 0
    for index in (len(view), -len(view) - 1, 2**40):
        for read in (lambda index: view[index], view.locate, lambda index: view.read([0, index])):
            with pytest.raises(SampleIndexError, match=str(index)):
                read(index)
    assert view.sample_bytes > 0
    assert view.columns[0] == "tokens"
    lengths = view.lengths(np.arange(len(view)))
    np.testing.assert_array_equal(lengths, view.read(np.arange(len(view))).lengths)


@pytest.mark.parametrize("kind", MAKE)
def test_what_is_not_read_yet_is_the_same(store, kind):
    view, numbers = MAKE[kind](store), [3, 0, 5]
    np.testing.assert_array_equal(view.unread(numbers).tokens, view.read(numbers).tokens)
    if view.spec.table == "documents":
        assert [list(map(str, row)) for row in view.unread(numbers).spans["documents"]] == [
            list(map(str, row)) for row in view.read(numbers).spans["documents"]
        ]


@pytest.mark.parametrize("kind", ALONE)
def test_a_spec_opens_the_view_again(store, kind):
    view = MAKE[kind](store)
    spec = ViewSpec.from_json(json.loads(json.dumps(view.spec.to_json())))
    assert spec == view.spec
    again = store.view(spec)
    assert (len(again), again.spec, again.columns, again.identity) == (
        len(view),
        view.spec,
        view.columns,
        view.identity,
    )
    np.testing.assert_array_equal(again.read([1, 4]).tokens, view.read([1, 4]).tokens)
    assert view.spec.sample.sample == view.spec.sample
    assert (view.spec.sample.columns, view.spec.sample.spans) == ((), ())


@pytest.mark.parametrize("kind", ALONE)
def test_views_stores_and_loaders_pickle(store, kind):
    view = MAKE[kind](store)
    again = pickle.loads(pickle.dumps(view))
    assert again.spec == view.spec
    np.testing.assert_array_equal(again.read([1, 4]).tokens, view.read([1, 4]).tokens)
    loader = tokenfeed.Loader(view, 3)
    next(loader)
    moved = pickle.loads(pickle.dumps(loader))
    np.testing.assert_array_equal(next(moved).tokens, next(loader).tokens)
    assert pickle.loads(pickle.dumps(store)).identity == store.identity


@pytest.mark.parametrize("kind", [name for name in MAKE if "joined" in name])
def test_a_joined_view_joined_again_or_elsewhere_has_the_same_samples(store, kind):
    view = MAKE[kind](store)
    numbers = np.arange(len(view))
    for again in (pickle.loads(pickle.dumps(view)), join_views([view.parts[0], join_views(view.parts[1:])])):
        assert len(again) == len(view)
        np.testing.assert_array_equal(again.lengths(numbers), view.lengths(numbers))
        for number in numbers[:: len(view) // 20]:
            np.testing.assert_array_equal(again[number].tokens, view[number].tokens)


def test_views_that_differ_are_not_joined(store):
    for first, other in (
        (store.windows(7), store.windows(8)),
        (store.windows(7), store.documents()),
        (store.windows(7), store.windows(7, columns=["frame"])),
        (store.packed(30), store.packed(30, table="concepts")),
    ):
        with pytest.raises(ArgumentError, match="cannot be read together"):
            first.join([other])


@pytest.mark.parametrize(
    "value",
    [None, {}, [], {"kind": "window"}, {"kind": "windows"}, {"kind": "windows", "length": "7"},
     {"kind": "windows", "length": 0}, {"kind": "windows", "length": 7, "depth": 3}, {"kind": "windows", "length": 7.5},
     {"kind": "documents", "table": 5}, {"kind": "packed", "length": 7, "columns": "tokens"}],
)  # fmt: skip
def test_json_that_describes_no_view(value):
    with pytest.raises(StateError, match="view"):
        ViewSpec.from_json(value)


def test_rows_of_another_packing_algorithm_are_refused(store):
    spec = ViewSpec.from_json({**store.packed(30).spec.to_json(), "algorithm": 99})
    with pytest.raises(StateError, match="algorithm 99"):
        store.view(spec)


def test_a_store_is_a_context_manager(store_path):
    with tokenfeed.open(store_path) as store:
        assert store.windows(7)[0].index == 0


def test_a_view_names_the_tokenizer_of_its_store(tmp_path):
    for name, tokenizer in (("known", "0123456789abcdef"), ("unknown", None)):
        with tokenfeed.Writer(tmp_path / name, columns={"tokens": "u2"}, tokenizer=tokenizer) as writer:
            writer.append({"tokens": range(10)})
        view = tokenfeed.open(tmp_path / name).windows(2)
        assert view.tokenizer == view.join([view]).tokenizer == tokenizer
