"""Columns in fewer bits: what writers refuse, what readers refuse, and stores converted there and back."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import tokenfeed
from tokenfeed.errors import ArgumentError, CorruptionError, FitError, FormatError, TokenfeedError
from tokenfeed.format.records import sign
from tokenfeed.store.compress import compress
from tokenfeed.store.describe import describe_columns
from tokenfeed.store.verify import verify

COLUMNS = {"tokens": "uint32", "loss": "bool", "delta": "int16", "score": "float32"}
BITS = {"tokens": 17, "loss": 1, "delta": 9}


def documents(count=40, seed=0):
    rng = np.random.default_rng(seed)
    for number in range(count):
        size = int(rng.integers(0, 60))
        yield (
            number,
            {
                "tokens": rng.integers(0, 1 << 17, size),
                "loss": rng.integers(0, 2, size).astype(bool),
                "delta": rng.integers(-256, 256, size),
                "score": rng.random(size, np.float32),
            },
        )


def write(path, **options):
    given = {"mode": "append", "columns": COLUMNS, "spans": {"documents": "json", "lines": None}, "shard_bytes": 4_000}
    for split in ("train", "val"):
        with tokenfeed.Writer(path, **given, split=split, name=split, sync=False, **options) as writer:
            for number, columns in documents(seed=len(split)):
                half = len(columns["tokens"]) // 2
                writer.append({name: array[:half] for name, array in columns.items()}, documents={"n": number})
                writer.extend({name: array[half:] for name, array in columns.items()}, lines=None)
    return path


def everything(path, **options):
    store = tokenfeed.open(path, split="all", **options)
    found = [store.num_items, {name: size.items for name, size in store.splits.items()}, list(store.spans)]
    for table in store.spans:
        batch = store.documents(table, columns=list(COLUMNS)).read(np.arange(len(store.spans[table])))
        found += [batch.column(name).tolist() for name in COLUMNS] + [batch.lengths.tolist(), batch.payloads]
    windows = store.windows(7, columns=list(COLUMNS))
    batch = windows.read(np.arange(len(windows))[::-1])
    return [*found, *(batch.column(name).tolist() for name in COLUMNS)]


@pytest.fixture
def plain(tmp_path):
    return write(tmp_path / "plain")


@pytest.fixture
def packed(tmp_path):
    return write(tmp_path / "packed", bits=BITS)


@pytest.mark.parametrize("reading", [{}, {"backend": "mmap"}, {"verify": True}, {"max_open_files": 0}])
def test_a_packed_store_reads_as_a_plain_one(plain, packed, reading):
    assert everything(packed, **reading) == everything(plain)
    assert verify(packed).problems == []
    assert len(tokenfeed.open(packed).shards) > 1
    assert not list(packed.rglob("tokens.npy"))


def test_rows_packed_with_documents_and_loss_masks(plain, packed):
    read = []
    for path in (plain, packed):
        store = tokenfeed.open(path)
        store.pack(20)
        for view in (store.packed, store.windows):
            batch = view(20, loss_mask="loss", dtype="int64").read(np.arange(5))
            read.append((batch.tokens.tolist(), batch.loss_mask.tolist()))
    assert read[:2] == read[2:]


def test_the_file_by_numpy_alone(tmp_path):
    with tokenfeed.Writer(tmp_path, columns={"tokens": "uint32"}, bits={"tokens": 17}, name="a") as writer:
        writer.append({"tokens": np.arange(131_072)})
    rows = np.load(tmp_path / "a-00000" / "tokens.bits.npy")
    assert (rows.shape, rows.dtype) == ((16_384,), np.dtype([("<u4 () last 8", "u1", (17,))]))
    bits = np.unpackbits(rows["<u4 () last 8"].reshape(-1), bitorder="little").reshape(-1, 17)
    np.testing.assert_array_equal(bits @ (1 << np.arange(17)), np.arange(131_072))


@pytest.mark.parametrize(
    ("bits", "problem"),
    [
        ({"token": 17}, "the column 'token'; the store has tokens, loss, delta, score"),
        ({"score": 17}, "'score' of float32; only integers"),
        ({"tokens": 0}, "is 0; expected 1 to 31"),
        ({"tokens": 32}, "is 32; expected 1 to 31: uint32 has 32"),
        ({"tokens": 2.0}, "is 2.0; expected 1 to 31"),
        ({"loss": 2}, "is 2; expected 1 to 1"),
        ({"delta": -1}, "is -1; expected 1 to 15"),
    ],
)
def test_bits_that_no_column_can_have(tmp_path, bits, problem):
    with pytest.raises(ArgumentError, match=problem):
        tokenfeed.Writer(tmp_path / "store", columns=COLUMNS, bits=bits)
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(("column", "value"), [("tokens", 1 << 17), ("delta", 256), ("delta", -257)])
def test_values_that_do_not_fit_are_refused_and_not_written(tmp_path, column, value):
    good = {name: np.zeros(1, dtype) for name, dtype in COLUMNS.items()}
    with tokenfeed.Writer(tmp_path, columns=COLUMNS, bits=BITS) as writer:
        writer.append(good)
        with pytest.raises(FitError, match=f"{column}.*bits, which hold .* got {value}"):
            writer.append({**good, column: [value]})
        writer.append(good)
    assert tokenfeed.open(tmp_path).num_items == 2


def test_compressed_and_back(plain, tmp_path):
    told = []
    report = compress(plain, tmp_path / "small", progress=lambda done, total: told.append((done, total)))
    assert report.bits == {name: (bits,) for name, bits in BITS.items()}
    assert told[-1] == (2 * report.num_items, 2 * report.num_items)
    assert everything(tmp_path / "small", verify=True) == everything(plain)
    size = sum(file.stat().st_size for file in (tmp_path / "small").rglob("*.[nb][pi][yn]"))
    assert report.bytes_after == size < report.bytes_before
    assert verify(tmp_path / "small").problems == []
    assert [len(tokenfeed.open(path).versions) for path in (plain, tmp_path / "small")] == [2, 1]
    for kind in ("starts", "anchors"):
        for table in ("documents", "lines"):
            for file in plain.rglob(f"{table}.{kind}.npy"):
                assert file.read_bytes() == (tmp_path / "small" / file.relative_to(plain)).read_bytes()
    compress(tmp_path / "small", tmp_path / "back", bits={})
    assert tokenfeed.open(tmp_path / "back").identity == tokenfeed.open(plain).identity
    compress(plain, tmp_path / "one", bits={"tokens": 20})
    assert {tuple(shard.bits.items()) for shard in tokenfeed.open(tmp_path / "one").shards} == {(("tokens", 20),)}


def test_combined_and_mixed_stores(plain, packed, tmp_path):
    tokenfeed.combine([packed, plain], tmp_path / "both")
    store = tokenfeed.open(tmp_path / "both")
    assert [column["stored"] for column in describe_columns(store)] == [
        *("plain, 17 bits", "plain, 1 bit", "plain, 9 bits", "plain"),
    ]
    part = tokenfeed.open(plain)
    windows, own = store.windows(13), part.windows(13)
    rows = windows.read(np.arange(len(windows))).tokens
    np.testing.assert_array_equal(rows[: len(own)], own.read(np.arange(len(own))).tokens)
    compress(tmp_path / "both", tmp_path / "one")
    again = tokenfeed.open(tmp_path / "one")
    np.testing.assert_array_equal(again.windows(13).read(np.arange(len(windows))).tokens, rows)
    assert describe_columns(again)[0]["stored"] == "17 bits"
    assert describe_columns(again)[0]["bytes"] < 0.6 * 4 * again.num_items


def test_a_file_of_another_system(tmp_path):
    tokens = np.random.default_rng(0).integers(0, 100_277, 5_000, np.uint32)
    tokens[::100] = 100_257
    np.save(tmp_path / "tokens.npy", tokens)
    report = compress(tmp_path / "tokens.npy", tmp_path / "store", eos=100_257)
    assert report.bits == {"tokens": (17,)}
    store, file = tokenfeed.open(tmp_path / "store"), tokenfeed.open(tmp_path / "tokens.npy", eos=100_257)
    assert len(store.documents()) == len(file.documents()) > 1
    np.testing.assert_array_equal(store.windows(4_999).read([0]).tokens[0], tokens)


def test_where_nothing_is_saved(tmp_path):
    with tokenfeed.Writer(tmp_path / "store", columns={"tokens": "uint16"}) as writer:
        writer.append({"tokens": [50_256]})
    with pytest.raises(ArgumentError, match="would not become smaller: its columns are tokens of uint16"):
        compress(tmp_path / "store", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(FitError, match="15 bits, which hold 0 to 32767; got 50256"):
        compress(tmp_path / "store", tmp_path / "out", bits={"tokens": 15})
    assert list((tmp_path / "out").iterdir()) == []
    with pytest.raises(ArgumentError, match="already holds a store"):
        compress(tmp_path / "store", tmp_path / "store", bits={})


def test_damage_is_not_copied(plain, tmp_path):
    file = sorted(plain.rglob("tokens.npy"))[-1]
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(CorruptionError, match=r"tokens\.npy is damaged"):
        compress(plain, tmp_path / "out", bits={"tokens": 17})
    assert list((tmp_path / "out").iterdir()) == []


def rewrite(path: Path, kind: str, change):
    fields = {name: value for name, value in json.loads(path.read_bytes()).items() if name not in ("format", "version")}
    del fields["checksum"]
    change(fields)
    path.write_text(sign(kind, fields))


LIES = [
    ({"tokens": 0}, FormatError, "into 0 bits; expected 1 to 31"),
    ({"tokens": 65}, FormatError, "into 65 bits; expected 1 to 31"),
    ({"tokens": 32}, FormatError, "into 32 bits; expected 1 to 31"),
    ({"loss": 2}, FormatError, "into 2 bits; expected 1 to 1"),
    ({"score": 8}, FormatError, "only integers can be packed"),
    ({"other": 8}, CorruptionError, "packs a column 'other'"),
    ({"tokens": "17"}, FormatError, "'17', expected a whole number"),
    ([17], FormatError, "expected a JSON object"),
    ({"tokens": 16}, TokenfeedError, r"tokens\.bits\.npy"),
    ({"tokens": 18}, TokenfeedError, r"tokens\.bits\.npy"),
    (None, TokenfeedError, r"tokens\.npy"),
]


@pytest.mark.parametrize(("bits", "kind", "problem"), LIES)
@pytest.mark.parametrize("is_sealed", [True, False])
def test_lies_about_bits(tmp_path, bits, kind, problem, is_sealed):
    """In the list of a sealed store, and in `shard.json` of one that is not."""
    with tokenfeed.Writer(tmp_path, columns=COLUMNS, bits={"tokens": 17}, name="a", sync=False) as writer:
        for _, columns in documents():
            writer.append(columns)

    def lie(shard):
        del shard["bits"]
        shard.update({} if bits is None else {"bits": bits})

    if is_sealed:
        rewrite(tmp_path / "manifest.json", "tokenfeed", lambda fields: lie(fields["shards"][0]))
    else:
        rewrite(tmp_path / "manifest.json", "tokenfeed", lambda fields: fields.pop("shards"))
        rewrite(tmp_path / "a-00000" / "shard.json", "tokenfeed-shard", lie)
    with pytest.raises(kind, match=problem):
        tokenfeed.open(tmp_path).windows(5).read([0])


def test_lies_about_the_number_of_items(tmp_path):
    """The header of a packed file fits one number of items only, though files of eight have the same size."""
    with tokenfeed.Writer(tmp_path, columns={"tokens": "uint8"}, bits={"tokens": 1}, name="a", sync=False) as writer:
        writer.append({"tokens": np.ones(17, np.uint8)})
    for items in (16, 18, 24, 25, 1 << 61):
        rewrite(tmp_path / "manifest.json", "tokenfeed", lambda fields: fields["shards"][0].update(items=items))  # noqa: B023
        with pytest.raises(TokenfeedError):
            tokenfeed.open(tmp_path).windows(1, extra=0).read([0])
    rewrite(tmp_path / "manifest.json", "tokenfeed", lambda fields: fields["shards"][0].update(items=17))
    assert tokenfeed.open(tmp_path).windows(16).read([0]).tokens.tolist() == [[1] * 17]


def test_damaged_files(packed):
    file = sorted(packed.rglob("tokens.bits.npy"))[0]
    data = file.read_bytes()
    for cut in (b"", data[:60], data[:-1], data + b"\0"):
        file.write_bytes(cut)
        with pytest.raises(TokenfeedError, match=r"tokens\.bits\.npy"):
            everything(packed)
        assert not verify(packed).ok
    file.write_bytes(data[:-20] + bytes([data[-20] ^ 4]) + data[-19:])
    assert any("tokens.bits.npy" in problem for problem in verify(packed).problems)
    with pytest.raises(CorruptionError, match=r"tokens\.bits\.npy is damaged"):
        everything(packed, verify=True)


def test_an_interrupted_copy_is_no_store(plain, tmp_path):
    shutil.copytree(plain, tmp_path / "out")
    (tmp_path / "out" / "manifest.json").unlink()
    with pytest.raises(ArgumentError, match="interrupted `compress`"):
        compress(plain, tmp_path / "out")
