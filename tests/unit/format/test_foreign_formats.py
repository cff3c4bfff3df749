"""Each format of other systems: good files are read as written, bad ones are refused."""

import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from foreign_files import (
    STARTS_BY_EOS,
    TOKENS,
    Error,
    beside,
    datatrove,
    headed,
    megatron,
    olmo,
    put,
    read,
    refuse,
    refuse_documents,
    resize,
    starts,
)
from tokenfeed.errors import (
    ArgumentError,
    CorruptionError,
    FormatError,
    NotFoundError,
)
from tokenfeed.format.foreign import file as access
from tokenfeed.format.foreign import open_foreign


class TestMegatron:
    @pytest.mark.parametrize("suffix", ["", ".idx", ".bin"])
    @pytest.mark.parametrize("modes", [False, True])
    def test_any_of_its_names(self, tmp_path: Path, suffix: str, modes: bool) -> None:
        file = open_foreign(beside(megatron(tmp_path, modes=modes), suffix), eos=4)
        assert file.name == "data.v1_document.bin"
        assert read(file) == list(range(8))
        assert starts(file) == [0, 3, 3, 7]
        assert set(file.columns) == {"tokens"}

    @pytest.mark.parametrize("slice_items", [1, 2, 3, 100])
    def test_slices_do_not_matter(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slice_items: int) -> None:
        monkeypatch.setattr(access, "SLICE_ITEMS", slice_items)
        rng = np.random.default_rng(0)
        lengths = rng.integers(0, 4, 50).tolist()
        documents = [0, 0, *sorted(rng.integers(0, 51, 20).tolist()), 50, 50]
        first_items = np.concatenate(([0], np.cumsum(lengths)))
        assert starts(open_foreign(megatron(tmp_path, lengths, documents))) == first_items[documents[:-1]].tolist()

    def test_dtypes(self, tmp_path: Path) -> None:
        for code, dtype in enumerate(["u1", "i1", "<i2", "<i4", "<i8", "<f8", "<f4", "<u2"], start=1):
            file = open_foreign(megatron(tmp_path, dtype=dtype, code=code))
            assert file.columns["tokens"].dtype == np.dtype(dtype)
            assert read(file) == list(range(8))
            assert starts(file) == [0, 3, 3, 7]

    def test_empty_documents(self, tmp_path: Path) -> None:
        assert starts(open_foreign(megatron(tmp_path, [], [0, 0]))) == [0]
        assert starts(open_foreign(megatron(tmp_path, [0, 0], [0, 1, 2]))) == [0, 0]
        assert starts(open_foreign(megatron(tmp_path, [3], [0, 1, 1]))) == [0, 3]

    @pytest.mark.parametrize(
        ("arguments", "error", "message"),
        [
            ({"magic": b"TNTIDX\0\0\0"}, FormatError, r"\.idx: magic is b'TNTIDX.*expected b'MMIDIDX"),
            ({"version": 2}, FormatError, r"\.idx: version is 2, expected 1"),
            ({"code": 9}, FormatError, r"\.idx: dtype code is 9, expected one of \[1, 2"),
            ({"code": 0}, FormatError, "dtype code is 0"),
            ({"code": 4}, CorruptionError, r"\.bin: size is 16 bytes, expected 18 bytes"),
            (
                {"code": 5, "lengths": (3,), "documents": (0, 1)},
                CorruptionError,
                r"\.bin: .* 6 bytes, .* multiple of 8",
            ),
            ({"counts": (4, 5)}, CorruptionError, r"\.idx: size is 134 bytes, expected 122 bytes .* or 126"),
            ({"counts": (2**62, 5)}, CorruptionError, "size is 134 bytes, expected 55,340,232,221,128,654,922 bytes"),
            ({"counts": (5, 2**64 - 1)}, CorruptionError, "size is 134 bytes, expected 147,573,952"),
            ({"documents": ()}, CorruptionError, "length of doc_idx is 0, expected at least 1"),
            ({"pointers": (0, 4, 6, 6, 12)}, CorruptionError, r"\.bin: size is 16 bytes, expected 14 bytes"),
            ({"pointers": (0, 4, 6, 6, -2)}, CorruptionError, "last sequence is length 1 at byte -2"),
            ({"pointers": (0, 4, 6, 6, 2**63 - 1)}, CorruptionError, r"\.bin: size is 16 bytes, expected 9,223,372"),
        ],
    )
    def test_refused_at_open(self, tmp_path: Path, arguments: dict[str, Any], error: Error, message: str) -> None:
        refuse(megatron(tmp_path, **arguments), error, message)

    def test_refused_with_its_documents(self, tmp_path: Path) -> None:
        cases: list[tuple[dict[str, Any], str]] = [
            ({"pointers": (0, 2, 6, 6, 14)}, r"pointer\[1\] is 2, expected 4"),
            ({"pointers": (2, 4, 6, 6, 14)}, r"pointer\[0\] is 2, expected 0"),
            ({"documents": (1, 2, 2, 4, 5)}, r"doc_idx\[0\] is 1, expected 0"),
            ({"documents": (0, 2, 2, 4)}, r"doc_idx\[3\] is 4, expected 5"),
            ({"documents": (0, 3, 2, 4, 5)}, r"doc_idx\[2\] is 2, expected at least 3"),
            ({"documents": (0, 9, 9, 9, 5)}, r"doc_idx\[4\] is 5, expected at least 9"),
            ({"documents": (0, -1, 2, 4, 5)}, r"doc_idx\[1\] is -1, expected at least 0"),
        ]
        for arguments, message in cases:
            refuse_documents(megatron(tmp_path, **arguments), r"\.idx: " + message)

    def test_absurd_lengths(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(access, "SLICE_ITEMS", 1)
        index = beside(megatron(tmp_path), ".idx")
        data = index.read_bytes()
        for length, message in ((-1, r"length\[0\] is -1"), (2**31 - 1, "sum of .* 4,294,967,294")):
            index.write_bytes(data[:34] + struct.pack("<i", length) + data[38:])
            refuse_documents(index, message)

    @pytest.mark.parametrize("change", [-1, 1, -8, 16, -101])
    @pytest.mark.parametrize("suffix", [".idx", ".bin"])
    def test_cut_or_grown(self, tmp_path: Path, suffix: str, change: int) -> None:
        prefix = megatron(tmp_path)
        resize(beside(prefix, suffix), max(change, -15) if suffix == ".bin" else change)
        refuse(prefix, CorruptionError, f"{suffix}: size")

    def test_missing_partner(self, tmp_path: Path) -> None:
        prefix = megatron(tmp_path)
        beside(prefix, ".bin").unlink()
        for path in (prefix, beside(prefix, ".idx")):
            refuse(path, NotFoundError, r"data\.v1_document\.bin, does not exist")

    def test_swapped(self, tmp_path: Path) -> None:
        prefix = megatron(tmp_path)
        index, tokens = beside(prefix, ".idx"), beside(prefix, ".bin")
        data = index.read_bytes(), tokens.read_bytes()
        tokens.write_bytes(data[0])
        index.write_bytes(data[1])
        refuse(prefix, FormatError, "magic is")
        refuse(tokens, FormatError, "for a Megatron index")

    def test_damaged_index_is_not_taken_for_nanogpt(self, tmp_path: Path) -> None:
        path = beside(megatron(tmp_path, magic=b"XMIDIDX\0\0"), ".bin")
        refuse(path, FormatError, r"\.idx: magic is b'XMIDIDX.*give their dtype")
        assert open_foreign(path, dtype="uint16").num_items == 8


class TestDatatrove:
    @pytest.mark.parametrize("dtype", ["<u2", "<u4"])
    def test_all_there(self, tmp_path: Path, dtype: str) -> None:
        file = open_foreign(datatrove(tmp_path, dtype=dtype), eos=0)
        assert {name: column.dtype for name, column in file.columns.items()} == {
            "tokens": np.dtype(dtype),
            "loss_mask": bool,
        }
        assert read(file) == TOKENS
        assert read(file, "loss_mask") == [True, False] * 4
        assert starts(file) == [0, 3, 3]

    def test_alone(self, tmp_path: Path) -> None:
        path = put(tmp_path / "x.ds", TOKENS, "<u4")
        refuse(path, ArgumentError, r"x\.ds has no \.metadata .* give dtype")
        refuse(path, ArgumentError, "dtype is int64; a datatrove file", dtype="int64")
        file = open_foreign(path, dtype=np.uint32)
        assert read(file) == TOKENS
        assert file.boundaries is None
        assert starts(open_foreign(path, dtype="uint32", eos=0)) == STARTS_BY_EOS
        path = datatrove(tmp_path, metadata="gpt2\n8\n8 T")
        refuse(path, ArgumentError, "give dtype")
        assert read(open_foreign(path, dtype="uint16")) == TOKENS

    def test_bad_metadata(self, tmp_path: Path) -> None:
        for text, error, message in (
            ("gpt2|3\n8\n", FormatError, r"\.metadata: token size is '3', expected 2 or 4"),
            ("gpt2|\n8\n", FormatError, "token size is ''"),
            ("gpt2|4\n8\n", CorruptionError, "token count is 8, expected 4"),
            ("gpt2|2\n7\n", CorruptionError, "token count is 7, expected 8"),
            ("gpt2|2\n8 T\n", CorruptionError, "token count is '8 T', expected a number"),
        ):
            refuse(datatrove(tmp_path, metadata=text), error, message)

    def test_bad_index(self, tmp_path: Path) -> None:
        for ends in ([3, 7], [3, 9], [], [2**63], [2**64 - 1]):
            path = datatrove(tmp_path, ends=ends)
            refuse(path, CorruptionError, r"\.index: end of the last document is .* expected 8")
        for ends in ([4, 3, 8], [9, 8], [2**63 + 1, 8], [2**64 - 1, 8]):
            refuse_documents(datatrove(tmp_path, ends=ends), r"\.index: document start\[\d\] is .*, expected at least")

    def test_sizes(self, tmp_path: Path) -> None:
        for kind, change in (("", -1), (".index", 3), (".loss", -1), (".loss", 1)):
            path = datatrove(tmp_path)
            resize(beside(path, kind), change)
            refuse(path, CorruptionError, f"merged.ds{kind}: size")


class TestOlmo:
    @pytest.mark.parametrize("dtype", ["u1", "<u2", "<u4", "<u8"])
    def test_dtype_is_given(self, tmp_path: Path, dtype: str) -> None:
        path = olmo(tmp_path, dtype=dtype)
        refuse(path, ArgumentError, r"part-0\.00\.npy has no NumPy header.* give dtype='uint8'")
        refuse(path, ArgumentError, "dtype is int8; a raw", dtype="int8")
        assert read(open_foreign(path, dtype=dtype)) == TOKENS
        assert starts(open_foreign(path, dtype=dtype, eos=0)) == STARTS_BY_EOS

    def test_csv_wins_over_eos(self, tmp_path: Path) -> None:
        for rows in ("0,3\n3,8\n", "0,3,id,src,0\r\n3,8,,,", '0,3,"a,\n9,9",src\n3,8,"é ""q"" \x00"\n'):
            assert starts(open_foreign(olmo(tmp_path, rows), dtype="uint16", eos=0)) == [0, 3]
        assert starts(open_foreign(olmo(tmp_path, "0,3\n3,3\n3,8"), dtype="uint16")) == [0, 3, 3]

    def test_items_behind_the_last_row_are_a_document(self, tmp_path: Path) -> None:
        for rows, expected in (("0,3\n3,7\n", [0, 3, 7]), ("", [0])):
            assert starts(open_foreign(olmo(tmp_path, rows), dtype="uint16")) == expected

    def test_bad_csv(self, tmp_path: Path) -> None:
        for rows, message in (
            ("1,8\n", "start of row 0 is 1, expected 0"),
            ("0,3\n4,8\n", "start of row 1 is 4, expected 3"),
            ("0,3\n2,8\n", "start of row 1 is 2, expected 3"),
            ("0,9\n", "end of row 0 is 9, expected from 0 to 8"),
            ("0,5\n5,3\n3,8\n", "end of row 1 is 3, expected from 5 to 8"),
            ("0,99999999999999999999\n", "end of row 0 is 99,999"),
            ("start,end\n0,8\n", "row 0 is 'start,end', expected start,end,…"),
            ("0,8\n\n", "row 1 is ''"),
            (f"0,{'8' * 9999}\n", "row 0 is '0,888"),
            (f"0,8,{'x' * 200_000}\n", "field larger than field limit"),
        ):
            refuse_documents(olmo(tmp_path, rows), r"\.csv\.gz.*" + message, dtype="uint16")

    @pytest.mark.parametrize("damage", ["plain", "cut", "middle", "sum"])
    def test_bad_gzip(self, tmp_path: Path, damage: str) -> None:
        path = olmo(tmp_path, "".join(f"{i},{i + 1}\n" for i in range(8)))
        table = tmp_path / "part-0.00.csv.gz"
        data = table.read_bytes()
        at = {"middle": 20, "sum": len(data) - 8}.get(damage, 0)
        flipped = data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]
        table.write_bytes({"plain": b"0,8\n", "cut": data[:-9]}.get(damage, flipped))
        refuse_documents(path, r"part-0\.00\.csv\.gz is not valid CSV compressed with gzip", dtype="uint16")


class TestNumpy:
    @pytest.mark.parametrize("dtype", ["u1", "<u2", "<i4", "<i8", "<f4", "?", "<M8[s]"])
    @pytest.mark.parametrize("name", ["x.npy", "x.bin", "x"])
    def test_by_magic(self, tmp_path: Path, dtype: str, name: str) -> None:
        values = np.arange(9).astype(dtype)
        with (tmp_path / name).open("wb") as out:
            np.save(out, values)
        file = open_foreign(tmp_path / name)
        assert (read(file), file.columns["tokens"].dtype, file.boundaries) == (values.tolist(), values.dtype, None)
        assert file.parts["tokens"].header.startswith(b"\x93NUMPY")

    def test_refused(self, tmp_path: Path) -> None:
        for array, message in (
            (np.zeros((2, 3), "<u2"), r"shape is \(2, 3\), expected one dimension"),
            (np.array(3, "<u2"), r"shape is \(\), expected one dimension"),
            (np.zeros(3, ">u2"), "little-endian"),
            (np.array([{}], object), "without Python objects"),
        ):
            np.save(tmp_path / "x.npy", array)
            refuse(tmp_path / "x.npy", FormatError, message)

    def test_cut_or_grown(self, tmp_path: Path) -> None:
        for size in (6, 9, 11, 60, 127, 128, 143, 145):
            np.save(tmp_path / "x.npy", np.array(TOKENS, "<u2"))
            os.truncate(tmp_path / "x.npy", size)
            refuse(tmp_path / "x.npy", FormatError, r"x\.npy")

    def test_absurd_count(self, tmp_path: Path) -> None:
        text = repr({"descr": "<u2", "fortran_order": False, "shape": (2**62,)}).encode()
        (tmp_path / "x.npy").write_bytes(b"\x93NUMPY\x01\0" + struct.pack("<H", len(text)) + text)
        refuse(tmp_path / "x.npy", CorruptionError, "bytes for 4,611,686,018,427,387,904 items")


class TestNanogpt:
    def test_raw(self, tmp_path: Path) -> None:
        path = put(tmp_path / "train.bin", TOKENS)
        file = open_foreign(path)
        assert (read(file), file.columns["tokens"].dtype, file.boundaries) == (TOKENS, np.dtype("<u2"), None)
        assert read(open_foreign(put(path, TOKENS, "<i4"), dtype="int32")) == TOKENS

    @pytest.mark.parametrize("slice_items", [1, 3, 4, 7, 8, 100])
    def test_eos(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slice_items: int) -> None:
        monkeypatch.setattr(access, "SLICE_ITEMS", slice_items)
        cases = [([0], [0]), ([0, 0], [0, 1]), ([1], [0]), ([1, 0], [0]), ([0, 1], [0, 1]), (TOKENS, STARTS_BY_EOS)]
        for tokens, expected in cases:
            file = open_foreign(put(tmp_path / "x.bin", tokens), eos=0)
            assert starts(file) == starts(file) == expected

    def test_refused(self, tmp_path: Path) -> None:
        path = put(tmp_path / "x.bin", TOKENS)
        for eos, message in ((65536, "which cannot hold it"), (-1, "cannot hold"), ("0", "expected a token number")):
            refuse(path, ArgumentError, message, eos=eos)
        refuse(path, ArgumentError, "needs integers", eos=0, dtype="float32")
        for dtype in ("nonsense", ">u2", "O", "S", 7, "(2,)u2"):
            refuse(path, ArgumentError, "dtype", dtype=dtype)
        put(path, [0] * 5, "u1")
        refuse(path, CorruptionError, r"x\.bin: size of the items is 5 bytes, expected a multiple of 2")


class TestHeaded:
    @pytest.mark.parametrize("name", ["x.bin", "x.tokens"])
    def test_by_magic(self, tmp_path: Path, name: str) -> None:
        narrow = (20240520, 1, 8), (278895051, 1, 8, 2)
        wide = (20240801, 7, 8), (278895051, 1, 8, 4)
        for header, dtype in [(header, "<u2") for header in narrow] + [(header, "<u4") for header in wide]:
            path = headed(tmp_path / name, header, dtype)
            file = open_foreign(path, eos=0)
            assert (read(file), file.columns["tokens"].dtype) == (TOKENS, np.dtype(dtype))
            assert (starts(file), len(file.parts["tokens"].header)) == (STARTS_BY_EOS, 1024)
            assert open_foreign(path).boundaries is None

    def test_refused_unless_raw(self, tmp_path: Path) -> None:
        for header, error, message in (
            ((20240522,), FormatError, "magic is 20240522, evaluation examples of llm.c"),
            ((20240520, 2), FormatError, "version is 2, expected 1 in a llm.c file"),
            ((20240801, 1), FormatError, "version is 1, expected 7"),
            ((278895051, 7, 8, 2), FormatError, "version is 7, expected 1"),
            ((278895051, 1, 8, 0), FormatError, "item size is 0, expected 2 or 4"),
            ((278895051, 1, 8, -2), FormatError, "item size is -2, expected 2 or 4"),
            ((278895051, 1, 8, 4), CorruptionError, "size is 1,040 bytes, expected 1,056 bytes"),
            ((20240520, 1, 7), CorruptionError, "size is 1,040 bytes, expected 1,038 bytes for a token count of 7"),
            ((20240520, 1, -8), CorruptionError, "token count is -8, expected at least 0"),
            ((20240520, 1, 2**31 - 1), CorruptionError, "expected 4,294,968,318 bytes"),
        ):
            path = headed(tmp_path / "x.bin", header)
            refuse(path, error, rf"x\.bin: .*{message}.*give their dtype")
            assert open_foreign(path, dtype="uint16").num_items == 512 + len(TOKENS)

    def test_cut_or_grown(self, tmp_path: Path) -> None:
        for size in (4, 1023, 1024, 1039, 1041):
            path = headed(tmp_path / "x.bin")
            os.truncate(path, size)
            refuse(path, CorruptionError, r"x\.bin: size is")
