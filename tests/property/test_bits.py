"""A packed column reads as the plain one: random widths, dtypes, shapes, views, shards and ways of reading."""

import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import tokenfeed
from tokenfeed.kernels.numbers import pack_numbers

DTYPES = ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "bool")
READING = st.fixed_dictionaries(
    {
        "backend": st.sampled_from(["pread", "mmap"]),
        "reads_in_flight": st.integers(1, 40),
        "max_open_files": st.sampled_from([None, 0, 1]),
        "verify": st.booleans(),
    }
)
LENGTHS = st.lists(st.integers(0, 70), min_size=1, max_size=30)


@st.composite
def packed_columns(draw):
    """(dtype, inner shape, bits)."""
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    most = 1 if dtype.kind == "b" else min(56, 8 * dtype.itemsize - 1)
    return dtype, draw(st.sampled_from([(), (), (3,), (2, 5)])), draw(st.integers(1, most))


def draw_values(rng, count, dtype, shape, bits):
    """Values over all that the bits can hold, the smallest and the largest included."""
    if dtype.kind == "b":
        return rng.integers(0, 2, (count, *shape)).astype(bool)
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if dtype.kind == "i" else (0, (1 << bits) - 1)
    values = rng.integers(low, high, (count, *shape), dtype, endpoint=True)
    values.reshape(-1)[:2] = [low, high][: values.size]
    return values


def plain_bits(values, bits):
    """What a file of packed numbers holds, by NumPy alone."""
    numbers = values.reshape(-1).view(f"u{values.dtype.itemsize}").astype(np.uint64)
    numbers = np.concatenate([numbers, np.zeros(-numbers.size % 8, np.uint64)])
    each = (numbers[:, None] >> np.arange(bits, dtype=np.uint64)) & np.uint64(1)
    return np.packbits(each.astype(np.uint8).reshape(-1, 8 * bits), axis=1, bitorder="little")


@given(packed_columns(), st.integers(0, 90), st.integers(0, 2**32))
def test_kernel_packs_as_numpy_does(column, count, seed):
    dtype, shape, bits = column
    values = draw_values(np.random.default_rng(seed), count, dtype, shape, bits).reshape(-1)
    expected = plain_bits(values, bits)
    padded = np.concatenate([values, np.zeros(-values.size % 8, dtype)]).view(f"u{dtype.itemsize}")
    np.testing.assert_array_equal(pack_numbers(padded, bits), expected.reshape(-1))


@given(packed_columns(), packed_columns(), LENGTHS, st.sampled_from([1, 60, 1 << 30]), READING, st.data())
def test_packed_reads_as_plain(tokens, labels, lengths, shard_bytes, reading, data):
    """Two columns, either or both packed, in shards of which some are plain and some packed."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    described = {"tokens": tokens, "labels": labels}
    count = sum(lengths)
    values = {name: draw_values(rng, count, *column) for name, column in described.items()}
    cuts = np.concatenate([[0], np.cumsum(lengths)])
    columns = {name: (dtype, shape) for name, (dtype, shape, _) in described.items()}
    widths = {name: bits for name, (_, _, bits) in described.items()}
    with tempfile.TemporaryDirectory() as folder:
        for part, packs in enumerate(data.draw(st.permutations([{}, widths, {"tokens": widths["tokens"]}]))):
            mine = range(part * len(lengths) // 3, (part + 1) * len(lengths) // 3)
            with tokenfeed.Writer(
                *(folder,),
                mode="append",
                columns=columns,
                spans={"documents": "json"},
                bits=packs,
                name=f"part-{part}",
                shard_bytes=shard_bytes,
                sync=False,
            ) as writer:
                for number in mine:
                    rows = slice(cuts[number], cuts[number + 1])
                    writer.append({name: array[rows] for name, array in values.items()}, documents={"n": number})
        store = tokenfeed.open(folder, **reading)
        length, extra = data.draw(st.integers(1, 40)), data.draw(st.integers(0, 2))
        is_integer = tokens[0].kind in "iu" and tokens[0].itemsize < 8 and not tokens[1]
        wide = data.draw(st.sampled_from([None, "int64"])) if is_integer else None
        view = store.windows(length, extra=extra, columns=["labels"], dtype=wide)
        indices = data.draw(st.lists(st.integers(0, len(view) - 1), max_size=12)) if len(view) else []
        batch = view.read(indices)
        for row, index in enumerate(indices):
            for name, array in values.items():
                found = batch.column(name)[row]
                np.testing.assert_array_equal(found, array[index * length : index * length + length + extra])
        documents = store.documents(columns=["labels"])
        some = data.draw(st.lists(st.integers(0, len(lengths) - 1), max_size=8))
        read = documents.read(some)
        for row, number in enumerate(some):
            for name, array in values.items():
                np.testing.assert_array_equal(read[row].column(name), array[cuts[number] : cuts[number + 1]])
        if shard_bytes == 1 << 30:
            for shard in store.shards:
                first = int(store.reader.starts[list(store.shards).index(shard)])
                for name in shard.bits:
                    rows = np.load(Path(folder, shard.name, f"{name}.bits.npy"))
                    items = values[name][first : first + shard.num_items]
                    last = (items.size - 1) % 8 + 1 if items.size else 0
                    assert rows.dtype.names == (f"{items.dtype.str} {items.shape[1:]} last {last}",)
                    np.testing.assert_array_equal(rows[rows.dtype.names[0]], plain_bits(items, shard.bits[name]))
