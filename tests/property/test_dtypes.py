"""`dtype=`: every view gives the numbers that are stored, in wider ones; by whatever way they are read."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tokenfeed
from tokenfeed.errors import ArgumentError, FitError

NARROW = ["uint8", "int8", "uint16", "int16", "uint32", "int32"]
READING = st.fixed_dictionaries(
    {
        "backend": st.sampled_from(["pread", "mmap"]),
        "reads_in_flight": st.sampled_from([1, 3, 32]),
        "max_open_files": st.sampled_from([None, 0, 1]),
        "verify": st.booleans(),
    }
)


def write(path, dtype, shape, lengths, seed=0):
    """Numbers of the whole range, in small shards."""
    limits = np.iinfo(dtype)
    rng = np.random.default_rng(seed)
    columns = {"tokens": (dtype, shape), "other": "uint8"}
    with tokenfeed.Writer(path, columns=columns, spans={"documents": "json"}, shard_bytes=700, sync=False) as writer:
        for length in lengths:
            tokens = rng.integers(limits.min, limits.max, (length, *shape), dtype=dtype, endpoint=True)
            writer.append({"tokens": tokens, "other": rng.integers(0, 256, length, dtype=np.uint8)}, documents={})


def views_of(store, length, cache, **options):
    return [
        store.windows(length, **options),
        store.windows(length, columns=["other"], **options),
        store.documents(columns=["other"], **options),
        store.packed(length, cache=cache, columns=["other"], **options),
    ]


@given(
    st.sampled_from(NARROW),
    st.sampled_from(["int32", "int64"]),
    st.sampled_from([(), (3,), (2, 2)]),
    st.lists(st.integers(0, 300), min_size=1, max_size=12),
    st.integers(1, 150),
    READING,
    st.data(),
)
def test_every_view(stored, wide, shape, lengths, length, reading, data):
    with tempfile.TemporaryDirectory() as folder:
        path, cache = Path(folder, "store"), Path(folder, "plan")
        write(path, stored, shape, [*lengths, 1])
        store = tokenfeed.open(path, **reading)
        if np.dtype(stored).itemsize > np.dtype(wide).itemsize:
            with pytest.raises(ArgumentError, match=f"column of {stored}.*not {wide}"):
                store.windows(length, dtype=wide)
            return
        store.pack(length, cache=cache)
        for narrow, view in zip(
            views_of(store, length, cache), views_of(store, length, cache, dtype=wide), strict=True
        ):
            assert view.spec.sample == narrow.spec.sample  # so each takes the other's checkpoints
            assert view.identity == narrow.identity
            indices = data.draw(st.lists(st.integers(0, len(view) - 1), max_size=12)) if len(view) else []
            batch, expected = view.read(indices), narrow.read(indices)
            if expected.tokens.max(initial=0) > np.iinfo(wide).max:
                with pytest.raises(FitError, match=rf"holds [\d,]+, which {wide} cannot"):
                    _ = batch.tokens
                continue
            assert batch.tokens.dtype == wide
            np.testing.assert_array_equal(batch.tokens, expected.tokens)
            np.testing.assert_array_equal(batch.column("other"), expected.column("other"))
            for row in range(len(indices)):
                np.testing.assert_array_equal(batch[row].tokens, expected[row].tokens)


def test_unsigned_numbers_as_signed_ones_of_the_same_width(tmp_path):
    """As most tokenizers have fewer than 2**31 ids, int32 takes uint32 tokens; one that does not fit is named."""
    with tokenfeed.Writer(tmp_path, columns={"tokens": "uint32"}) as writer:
        writer.append({"tokens": [1, 2**31 - 1, 3, 2**31 + 5]})
    windows = tokenfeed.open(tmp_path).windows(2, extra=0, dtype="int32")
    assert windows[0].tokens.dtype == np.int32
    assert windows[0].tokens.tolist() == [1, 2**31 - 1]
    out = np.zeros((1, 2), np.int32)
    assert windows.read([0], out=out).tokens.tolist() == [[1, 2**31 - 1]]
    for read in (lambda: windows[1].tokens, lambda: windows.read([1]).inputs, lambda: windows.read([1], out=out)):
        with pytest.raises(FitError, match=r"'tokens' holds 2,147,483,6.*, which int32 cannot: read it in a wider"):
            read()
    assert tokenfeed.open(tmp_path).windows(2, extra=0, dtype="int64")[1].tokens.tolist() == [3, 2**31 + 5]


@pytest.mark.parametrize("backend", ["pread", "mmap"])
def test_stores_read_together_and_into_memory_of_the_caller(tmp_path, backend):
    for number in range(2):
        write(tmp_path / str(number), "int16", (), [400, 300], seed=number)
    views = [tokenfeed.open(tmp_path / str(n), backend=backend).windows(32, dtype="int64") for n in range(2)]
    joined = views[0].join(views[1:])
    expected = np.concatenate([view.read(np.arange(len(view))).tokens for view in views])
    found = joined.read(np.arange(len(joined)))
    assert found.tokens.dtype == np.int64
    np.testing.assert_array_equal(found.tokens, expected)
    out = np.empty((5, 33), np.int64)
    views[0].read(np.arange(5), out=out)
    np.testing.assert_array_equal(out, expected[:5])
    with pytest.raises(ArgumentError, match="expected int64"):
        views[0].read(np.arange(5), out=np.empty((5, 33), np.int16))
    stored = tokenfeed.open(tmp_path / "1", backend=backend).windows(32)
    with pytest.raises(ArgumentError, match=r"read as int64 in one, and .* read as int16 in the other"):
        views[0].join([stored])


def test_a_run_goes_on_in_another_dtype(tmp_path):
    """It changes no sample, so a checkpoint does not know of it."""
    write(tmp_path / "store", "uint16", (), [5000])
    store = tokenfeed.open(tmp_path / "store")
    whole = [batch.tokens for batch, _ in zip(tokenfeed.Loader(store.windows(50), 4), range(8), strict=False)]
    first, second = tokenfeed.Loader(store.windows(50), 4), tokenfeed.Loader(store.windows(50, dtype="int64"), 4)
    for _ in range(3):
        next(first)
    second.load_state_dict(first.state_dict())
    for expected in whole[3:]:
        tokens = next(second).tokens
        assert tokens.dtype == np.int64
        np.testing.assert_array_equal(tokens, expected)


def test_tensors_are_the_same(tmp_path):
    from tokenfeed.torch import to_device

    write(tmp_path / "store", "uint16", (), [2000])
    store = tokenfeed.open(tmp_path / "store")
    narrow, wide = (
        next(to_device(tokenfeed.Loader(store.windows(50, dtype=dtype), 4), "cpu")) for dtype in (None, "int64")
    )
    for name in ("inputs", "targets"):
        assert getattr(narrow, name).dtype == getattr(wide, name).dtype
        assert (getattr(narrow, name) == getattr(wide, name)).all()


def test_what_cannot_be(tmp_path):
    columns = {"a": "float32", "b": "uint16"}
    with tokenfeed.Writer(tmp_path / "two", columns=columns) as writer:
        writer.append({"a": np.zeros(9, np.float32), "b": np.zeros(9, np.uint16)})
    with pytest.raises(ArgumentError, match="there is neither"):
        tokenfeed.open(tmp_path / "two").windows(2, dtype="int64")
    with tokenfeed.Writer(tmp_path / "one", columns={"a": "float32"}) as writer:
        writer.append({"a": np.zeros(9, np.float32)})
    with pytest.raises(ArgumentError, match="may be float32, not int64"):
        tokenfeed.open(tmp_path / "one").windows(2, dtype="int64")
    assert tokenfeed.open(tmp_path / "one").windows(2, dtype="float32").read([0]).column("a").dtype == np.float32
