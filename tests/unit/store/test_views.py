"""Views and batches: shapes, arguments, lazily read columns, codecs, locations."""

import re

import numpy as np
import pytest

import tokenfeed
from tokenfeed.errors import (
    ArgumentError,
    CorruptionError,
    MissingError,
    SampleIndexError,
    TokenfeedError,
)
from tokenfeed.store.verify import verify


def test_inputs_and_targets_are_views_of_one_buffer(store_path, plain):
    inputs, targets = batch = tokenfeed.open(store_path).windows(64).read([3, 0])
    assert inputs.shape == targets.shape == (2, 64)
    assert inputs.dtype == np.uint16
    assert np.shares_memory(inputs, targets)
    np.testing.assert_array_equal(inputs[0], plain.tokens[192:256])
    np.testing.assert_array_equal(targets[0], plain.tokens[193:257])
    assert len(batch) == 2
    assert batch.indices.tolist() == [3, 0]
    assert batch[-1].index == 0


def test_extra(store_path, plain):
    store = tokenfeed.open(store_path)
    observations = store.windows(10, extra=0)
    assert observations.read([2]).inputs.shape == (1, 10)
    with pytest.raises(ArgumentError, match="extra=0"):
        _ = observations.read([2]).targets
    ahead = store.windows(10, extra=3).read([2])
    assert ahead.inputs.shape == ahead.targets.shape == (1, 10)
    np.testing.assert_array_equal(ahead.tokens[0], plain.tokens[20:33])


@pytest.mark.parametrize("arguments", [{"length": 0}, {"length": -1}, {"length": 5, "extra": -1}])
def test_bad_windows(store_path, arguments):
    with pytest.raises(ArgumentError):
        tokenfeed.open(store_path).windows(**arguments)


def test_a_view_can_be_iterated_like_a_sequence(store_path):
    windows = tokenfeed.open(store_path).windows(1000)
    assert [sample.index for sample in windows] == list(range(len(windows)))


@pytest.mark.parametrize("indices", [[0.5], [[0]], 0, "ab", [None], [True], np.zeros((2, 2), int)])
def test_indices_are_whole_numbers(store_path, indices):
    with pytest.raises(ArgumentError, match="whole numbers"):
        tokenfeed.open(store_path).windows(10).read(indices)


@pytest.mark.parametrize("kind", [list, tuple, range, np.uint8, np.int32, np.uint64, "read-only", "strided"])
def test_any_kind_of_whole_numbers_will_do(store_path, plain, kind):
    numbers = range(1, 9, 2)
    if kind == "strided":
        indices = np.arange(1, 9)[::2]
    elif kind == "read-only":
        indices = np.array(numbers)
        indices.flags.writeable = False
    else:
        indices = numbers if kind is range else kind(numbers) if kind in (list, tuple) else np.array(numbers, kind)
    batch = tokenfeed.open(store_path).windows(10).read(indices)
    np.testing.assert_array_equal(batch.inputs[:, 0], plain.tokens[[10, 30, 50, 70]])


def test_uint64_beyond_int64(store_path):
    with pytest.raises(SampleIndexError):
        tokenfeed.open(store_path).windows(10).read(np.array([2**63], np.uint64))


def test_other_columns_are_read_when_they_are_asked_for(store_path, plain):
    store = tokenfeed.open(store_path)
    for columns in ((), ("frame",), ("frame", "tokens")):
        batch = store.windows(10, columns=columns).read([7])
        np.testing.assert_array_equal(batch.column("frame")[0], plain.frames()[70:81])
        assert batch[0].column("frame").shape == (11, 2, 3)
    with pytest.raises(MissingError, match="tokens, frame"):
        batch.column("nothing")
    with pytest.raises(MissingError, match="tokens, frame"):
        store.windows(10, columns=["nothing"])
    with pytest.raises(MissingError, match="documents, concepts") as caught:
        batch.spans["nothing"]
    assert isinstance(caught.value, KeyError)
    assert "nothing" not in batch.spans
    with pytest.raises(MissingError):
        store.windows(10, spans=["nothing"])
    with pytest.raises(MissingError):
        store.documents("nothing")


def test_a_store_without_a_primary_column(tmp_path):
    with tokenfeed.Writer(tmp_path, columns={"a": "u1", "b": "<f4"}) as writer:
        writer.append({"a": [1, 2, 3], "b": [0.5, 1.5, 2.5]})
    batch = tokenfeed.open(tmp_path).windows(2).read([0])
    assert batch.column("b").tolist() == [[0.5, 1.5, 2.5]]
    with pytest.raises(ArgumentError, match="the columns are a, b"):
        _ = batch.inputs


def test_structured_columns(tmp_path):
    dtype = np.dtype([("token", "<u4"), ("concept", "<u2", (2,))])
    values = np.zeros(9, dtype)
    values["token"] = np.arange(9)
    values["concept"][:, 1] = np.arange(9) * 2
    with tokenfeed.Writer(tmp_path, columns={"tokens": dtype}) as writer:
        writer.append({"tokens": values[:4]})
        writer.append({"tokens": values[4:]})
    batch = tokenfeed.open(tmp_path).windows(4).read([1])
    assert batch.inputs["token"].tolist() == [[4, 5, 6, 7]]
    assert batch.targets["concept"][0, :, 1].tolist() == [10, 12, 14, 16]


def test_document_batches_are_ragged(store_path, plain):
    batch = tokenfeed.open(store_path).documents(columns=["frame"]).read([3, 0, 119])
    lengths = [len(plain.documents[number].tokens) for number in (3, 0, 119)]
    assert batch.lengths.tolist() == lengths
    assert batch.offsets.tolist() == [0, *np.cumsum(lengths)]
    assert batch.column("frame").shape == (sum(lengths), 2, 3)
    np.testing.assert_array_equal(batch.span_numbers("documents"), np.repeat([3, 0, 119], lengths))


def test_spans_of_a_table_by_number(store_path, plain):
    table = tokenfeed.open(store_path).spans["concepts"]
    written = plain.table("concepts")
    assert len(table) == len(written)
    for number in (0, 5, len(table) - 1):
        span = table[number]
        assert (span.start, span.stop, span.payload) == written[number]
    with pytest.raises(SampleIndexError):
        table[len(table)]


def test_own_and_unknown_codecs(tmp_path):
    class Upper:
        name = "upper"

        def encode(self, value):
            return value.upper().encode()

        def decode(self, data):
            return str(data, "utf8").lower()

    with tokenfeed.Writer(tmp_path, columns={"tokens": "u1"}, spans={"documents": Upper()}) as writer:
        writer.append({"tokens": [1, 2]}, documents="abc")
    assert tokenfeed.open(tmp_path, codecs=[Upper()]).documents()[0].payload == "abc"
    assert tokenfeed.open(tmp_path).documents()[0].payload == b"ABC"


def test_a_payload_that_cannot_be_decoded(tmp_path):
    class Liar:
        name = "json"

        def encode(self, value):
            return b"{"

        def decode(self, data):
            return None

    with tokenfeed.Writer(tmp_path, columns={"tokens": "u1"}, spans={"documents": Liar()}) as writer:
        writer.append({"tokens": [1]}, documents=1)
    with pytest.raises(CorruptionError, match="payload 0 of 'documents'"):
        _ = tokenfeed.open(tmp_path).documents()[0].payload


@pytest.mark.parametrize("path", ["ftp://host/store", "s3:///store", "s3://bucket/tokens.bin", "https://x/y.npy"])
def test_addresses_that_cannot_be_opened(path):
    with pytest.raises(ArgumentError):
        tokenfeed.open(path)


def test_nothing_to_open(tmp_path):
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(FileNotFoundError) as caught:
            tokenfeed.open(path)
        assert isinstance(caught.value, tokenfeed.errors.TokenfeedError)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (None, "None cannot be opened: expected the path or address of a store, or a list of them"),
        (5, "5 cannot be opened"),
        ([None], "None cannot be opened"),
        (b"store", "type bytes"),
        ({"web": "store"}, "type dict"),
        ([], "the list of stores to open is empty"),
        ("data/*.bin", "data/.*.bin is a pattern: open a list of paths"),
    ],
)
def test_what_is_no_path(path, message):
    with pytest.raises(TokenfeedError, match=message):
        tokenfeed.open(path)


def test_a_store_that_is_open_already(store_path):
    store = tokenfeed.open(store_path)
    with pytest.raises(ArgumentError, match=r"Store\(.* is open already: use it as it is"):
        tokenfeed.open(store)
    for action in (lambda: tokenfeed.open([store]), lambda: tokenfeed.combine([store], store_path / "all")):
        with pytest.raises(ArgumentError, match="got an object of type Store"):
            action()


def test_windows_say_what_is_left_out(tmp_path):
    with tokenfeed.Writer(tmp_path, columns={"tokens": "u2"}) as writer:
        writer.append({"tokens": range(415)})
    store = tokenfeed.open(tmp_path)
    windows = store.windows(16)
    assert (len(windows), windows.left_out) == (25, 14)
    assert windows.join([windows]).left_out == 28
    assert repr(store.windows(4)) == "View(103 samples of windows(4): tokens; 2 items at the end in no window)"
    assert repr(store.windows(6)) == "View(69 samples of windows(6): tokens)"
    assert store.windows(500).left_out == 415


def test_everything_public_says_what_it_is(store_path, tmp_path):
    store = tokenfeed.open(store_path)
    batch = store.documents().read([3, 5])
    writer = tokenfeed.Writer(tmp_path, columns={"tokens": "u2"}, spans={"documents": "json"})
    writer.append({"tokens": [1, 2]}, documents="a")
    shown = [store, store.windows(4), store.documents(), store.spans, store.spans["documents"], batch, batch[1]]
    shown += [batch.spans, batch.spans["documents"], batch.spans["documents"][0], store.columns, store.splits, writer]
    shown += [store.pack(9), store.packed(9), store.documents().locate(3), verify(store_path)]
    for value in shown:
        assert " object at 0x" not in repr(value), type(value)
    assert re.fullmatch(r"Sample\(5: \d+ items of tokens\)", repr(batch[1]))
    assert repr(batch.spans["documents"]) == "BatchSpans(2 spans of 'documents' in 2 rows)"
    assert "0 shards committed, 2 items in the shard being written; tokens: uint16;" in repr(writer)
    writer.abort()
    assert "closed" in repr(writer)


@pytest.mark.parametrize("option", ["columns", "spans"])
def test_one_name_is_not_taken_for_a_list_of_letters(store_path, option):
    with pytest.raises(ArgumentError, match=rf"{option} is 'tokens'; expected a list of names: {option}=\['tokens'\]"):
        tokenfeed.open(store_path).windows(4, **{option: "tokens"})
