"""Arrow files with lists of token ids, as `datasets` and pyarrow write them: opened in place or refused."""

import datasets
import numpy as np
import pyarrow as pa
import pytest

import tokenfeed
from tokenfeed.errors import ArgumentError, CorruptionError, FormatError, NotAStoreError, TokenfeedError

RNG = np.random.default_rng(0)
DOCUMENTS = [RNG.integers(0, 50_000, int(length)).tolist() for length in RNG.integers(0, 60, 250)]


def check(store, dtype="int32"):
    assert store.columns["tokens"].dtype == dtype
    documents = store.documents()
    assert [documents[number].tokens.tolist() for number in range(len(documents))] == DOCUMENTS
    flat = np.concatenate([np.array(each, np.int64) for each in DOCUMENTS])
    view = store.windows(16)
    assert np.array_equal(view.read(np.arange(len(view))).column("tokens")[:, :16].ravel(), flat[: 16 * len(view)])


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """What `save_to_disk` wrote, in three files, with columns before and after."""
    folder = tmp_path_factory.mktemp("arrow") / "saved"
    rows = {
        "a": [{"x": [str(number)], "y": 1.5} for number in range(250)],
        "attention_mask": [[True] * len(each) for each in DOCUMENTS],
        "input_ids": DOCUMENTS,
        "text": [str(len(each)) for each in DOCUMENTS],
    }
    features = datasets.Features(
        {
            "a": {"x": datasets.List(datasets.Value("string")), "y": datasets.Value("float64")},
            "attention_mask": datasets.List(datasets.Value("bool")),
            "input_ids": datasets.List(datasets.Value("int32")),
            "text": datasets.Value("string"),
        }
    )
    datasets.Dataset.from_dict(rows, features=features).save_to_disk(folder, num_shards=3)
    return folder


@pytest.mark.parametrize("backend", ["pread", "mmap"])
def test_a_dataset_that_was_saved(saved, backend):
    check(tokenfeed.open(saved, backend=backend))
    with tokenfeed.Loader(tokenfeed.open(saved, backend=backend).windows(16), 4) as loader:
        next(loader)
        state = loader.state_dict()
    with tokenfeed.Loader(tokenfeed.open(sorted(saved.glob("*.arrow"))).windows(16), 4) as loader:
        loader.load_state_dict(state)  # the same data, as a list of files
    with pytest.raises(ArgumentError, match="records int32"):
        tokenfeed.open(saved, dtype="uint16")


@pytest.mark.parametrize("kind", [pa.list_(pa.uint16()), pa.large_list(pa.int64())], ids=str)
@pytest.mark.parametrize("is_file", [True, False])
def test_streams_and_files_in_many_batches(kind, is_file, tmp_path):
    table = pa.table({"id": pa.array(range(250)), "tokens": pa.array(DOCUMENTS, kind)})
    path = tmp_path / "a.arrow"
    with (pa.ipc.new_file if is_file else pa.ipc.new_stream)(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=40)
    check(tokenfeed.open(path), str(kind.value_type))


def test_lists_of_one_size(tmp_path):
    values = pa.array(np.arange(80), pa.int32())
    write(tmp_path / "a.arrow", pa.FixedSizeListArray.from_arrays(values, 8))
    assert tokenfeed.open(tmp_path / "a.arrow").documents()[9].tokens.tolist() == list(range(72, 80))


def write(path, column, **options):
    table = pa.table({"input_ids": column})
    with pa.ipc.new_stream(path, table.schema, **options) as writer:
        writer.write_table(table)
    return path


def test_what_is_refused(tmp_path):
    zipped = pa.ipc.IpcWriteOptions(compression="zstd")
    for name, column, options, message in (
        ("null", pa.array([[1], None], pa.list_(pa.int32())), {}, "a list or a token is null"),
        ("inner", pa.array([[1], [None]], pa.list_(pa.int32())), {}, "a list or a token is null"),
        ("text", pa.array(["a"]), {}, "no column is known to hold tokens"),
        ("zstd", pa.array(DOCUMENTS, pa.list_(pa.int32())), {"options": zipped}, "compressed"),
    ):
        with pytest.raises(FormatError, match=message):
            tokenfeed.open(write(tmp_path / f"{name}.arrow", column, **options))
    (tmp_path / "none.arrow").write_bytes(b"no Arrow")
    with pytest.raises(FormatError, match="is no Arrow file"):
        tokenfeed.open(tmp_path / "none.arrow")
    (tmp_path / "splits").mkdir()
    (tmp_path / "splits" / "dataset_dict.json").write_text("{}")
    with pytest.raises(NotAStoreError, match="holds the splits"):
        tokenfeed.open(tmp_path / "splits")


def test_damage_anywhere_is_an_error_or_other_tokens(tmp_path):
    """Never a crash, and never bytes from outside the file: bytes flipped in turn, and the file cut short."""
    path = write(tmp_path / "a.arrow", pa.array(DOCUMENTS[:40], pa.list_(pa.int32())))
    data = bytearray(path.read_bytes())
    for place in range(0, min(len(data), 1600), 7):
        path.write_bytes(data[:place] + bytes([data[place] ^ 0xFF]) + data[place + 1 :])
        try:
            view = tokenfeed.open(path).documents()
            view.read(np.arange(len(view)))
        except TokenfeedError:
            pass
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(CorruptionError, match="the file ends before"):
        tokenfeed.open(path)
