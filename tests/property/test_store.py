"""Whatever is written is what is read: views and spans against their plain twins, over random stores."""

import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tokenfeed
from opening import open_store
from plain import make_documents, spans_of

LENGTHS = st.lists(st.one_of(st.integers(0, 20), st.integers(0, 6000)), max_size=40)
SHARD_BYTES = st.sampled_from([1, 100, 5_000, 1 << 30])
READING = st.fixed_dictionaries(
    {
        "backend": st.sampled_from(["pread", "mmap"]),
        "open_files": st.sampled_from([None, 0, 1, 7]),
    }
)


@given(LENGTHS, SHARD_BYTES, READING, st.integers(1, 5000), st.integers(0, 3), st.data())
def test_windows_equal_slices(lengths, shard_bytes, reading, length, extra, data):
    plain = make_documents(lengths)
    tokens, frames = plain.tokens, plain.frames()
    with tempfile.TemporaryDirectory() as folder:
        plain.write(Path(folder), shard_bytes=shard_bytes)
        store = open_store(folder, **reading)
        assert store.num_items == len(tokens)
        view = store.windows(length, extra=extra, columns=data.draw(st.sampled_from([(), ("frame",)])))
        assert len(view) == max(0, (len(tokens) - extra) // length)
        indices = data.draw(st.lists(st.integers(0, len(view) - 1), max_size=20)) if len(view) else []
        batch = view.read(indices)
        assert batch.tokens.shape == (len(indices), length + extra)
        for row, index in enumerate(indices):
            start, stop = index * length, index * length + length + extra
            np.testing.assert_array_equal(batch.tokens[row], tokens[start:stop])
            np.testing.assert_array_equal(batch.column("frame")[row], frames[start:stop])
            for table in ("documents", "concepts"):
                expected = plain.touched(table, start, stop)
                assert spans_of(batch.spans[table][row]) == expected
                covering = np.repeat([span[0] for span in expected], [span[2] - span[1] for span in expected])
                np.testing.assert_array_equal(batch.span_numbers(table)[row], covering)
            assert sum(place.stop - place.start for place in view.locate(index)) == length + extra


@given(LENGTHS, SHARD_BYTES, READING, st.data())
def test_documents_equal_what_was_written(lengths, shard_bytes, reading, data):
    plain = make_documents(lengths)
    with tempfile.TemporaryDirectory() as folder:
        plain.write(Path(folder), shard_bytes=shard_bytes)
        store = open_store(folder, **reading)
        for table in ("documents", "concepts"):
            written = plain.table(table)
            view = store.documents(table)
            assert len(view) == len(written)
            indices = data.draw(st.lists(st.integers(0, len(view) - 1), max_size=20)) if len(view) else []
            batch = view.read(indices)
            for row, index in enumerate(indices):
                document = batch[row]
                start, stop, payload = written[index]
                np.testing.assert_array_equal(document.tokens, plain.tokens[start:stop])
                np.testing.assert_array_equal(document.column("frame"), plain.frames()[start:stop])
                assert document.payload == payload
                assert spans_of(document.spans[table]) == [(index, 0, stop - start, payload)]
            assert batch.payloads == [written[index][2] for index in indices]


@given(LENGTHS, SHARD_BYTES, st.data())
def test_many_documents_at_once_write_the_same_files(lengths, shard_bytes, data):
    plain = make_documents(lengths)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(lengths)), max_size=4)))
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as many:
        for path, groups in (
            (one, [[document] for document in plain.documents]),
            (many, [plain.documents[a:b] for a, b in zip([0, *cuts], [*cuts, len(lengths)], strict=True)]),
        ):
            with tokenfeed.Writer(
                path, columns={"tokens": "uint16"}, spans={"documents": "json"}, name="part", sync=False
            ) as writer:
                for group in groups:
                    if path == one:
                        writer.append({"tokens": group[0].tokens}, documents=group[0].payload)
                        continue
                    writer.append(
                        {"tokens": np.concatenate([np.empty(0, np.uint16), *(document.tokens for document in group)])},
                        lengths=[len(document.tokens) for document in group],
                        documents=[document.payload for document in group],
                    )
        if lengths:
            assert tokenfeed.open(one).identity == tokenfeed.open(many).identity


@given(st.lists(LENGTHS, min_size=1, max_size=4), READING, st.integers(1, 300))
def test_combined_stores_are_one_long_array(groups, reading, length):
    stores = [make_documents(lengths, seed=seed) for seed, lengths in enumerate(groups)]
    tokens = np.concatenate([store.tokens for store in stores])
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, str(number)) for number in range(len(stores))]
        for store, path in zip(stores, paths, strict=True):
            store.write(path, shard_bytes=3000)
        tokenfeed.combine(paths, Path(folder, "all"))
        for opened in (open_store(Path(folder, "all"), **reading), open_store(paths, **reading)):
            view = opened.windows(length)
            indices = np.arange(min(len(view), 20))
            np.testing.assert_array_equal(
                view.read(indices).inputs, tokens[: indices.size * length].reshape(-1, length)
            )
            assert opened.num_items == len(tokens)
            assert len(opened.documents()) == sum(map(len, groups))


@pytest.mark.parametrize("backend", ["pread", "mmap"])
def test_threads_share_a_store(store_path, plain, backend):
    view = open_store(store_path, backend=backend, open_files=3).windows(50, spans=["concepts"])

    def read(seed):
        rng = np.random.default_rng(seed)
        for _ in range(100):
            indices = rng.integers(0, len(view), 16)
            batch = view.read(indices)
            for row, index in enumerate(indices):
                np.testing.assert_array_equal(batch.tokens[row], plain.tokens[index * 50 : index * 50 + 51])

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(read, range(6)))
