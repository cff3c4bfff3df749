"""What all formats of other systems share: empty and damaged files, dtypes, lazy tables, identity."""

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from foreign_files import (
    TOKENS,
    beside,
    datatrove,
    headed,
    megatron,
    olmo,
    put,
    read,
    refuse,
    resize,
    starts,
)
from tokenfeed.errors import (
    ArgumentError,
    NotAStoreError,
    TokenfeedError,
    TruncatedError,
)
from tokenfeed.format.foreign import open_foreign


class TestEveryFormat:
    def test_empty(self, tmp_path: Path) -> None:
        np.save(tmp_path / "n.npy", np.zeros(0, "<u2"))
        os.truncate(headed(tmp_path / "x.bin", (20240520, 1, 0)), 1024)
        put(tmp_path / "x.ds.index", [])
        raw = [put(tmp_path / name, []) for name in ("x.ds", "y.bin", "y.npy", "y.dat")]
        for path in (megatron(tmp_path, [], [0]), tmp_path / "n.npy", *raw):
            file = open_foreign(path, dtype="uint16", eos=0)
            assert (file.num_items, read(file), starts(file)) == (0, [], [])
        assert open_foreign(tmp_path / "x.bin").num_items == 0

    def test_what_is_none(self, tmp_path: Path) -> None:
        refuse(tmp_path / "x.bin", NotAStoreError, r"there is no file .*x\.bin.*Megatron", dtype="uint16")
        refuse(tmp_path, NotAStoreError, "there is no file")
        path = put(tmp_path / "tokens.dat", TOKENS)
        refuse(path, NotAStoreError, r"tokens\.dat is not a file that tokenfeed knows.*Megatron .*datatrove .*nanoGPT")
        assert read(open_foreign(path, dtype="uint16")) == TOKENS

    def test_dtype_must_agree(self, tmp_path: Path) -> None:
        np.save(tmp_path / "n.npy", np.array(TOKENS, "<u2"))
        for path in (megatron(tmp_path), datatrove(tmp_path), tmp_path / "n.npy"):
            assert open_foreign(path, dtype="uint16").num_items == 8
            refuse(path, ArgumentError, r"dtype is uint32, but .* uint16", dtype="uint32")

    def test_cut_after_open(self, tmp_path: Path) -> None:
        tables = [beside(megatron(tmp_path), ".idx"), beside(datatrove(tmp_path), ".index")]
        for path in (*tables, put(tmp_path / "x.bin", TOKENS)):
            file = open_foreign(path.with_suffix("") if path.suffix == ".index" else path, eos=0)
            os.truncate(path, 6)
            assert file.boundaries is not None
            for use in (file.boundaries.find, file.identity):
                with pytest.raises(TruncatedError, match=f"{path.name} ended"):
                    use()

    def test_opening_reads_no_table(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse_to_read(*_: Any, **__: Any) -> None:
            raise AssertionError("a whole table was read")

        for name in ("plain.read_slices", "plain._rows", "datatrove.read_slices", "megatron.read_slices"):
            monkeypatch.setattr(f"tokenfeed.format.foreign.{name}", refuse_to_read)
        for path in (megatron(tmp_path), datatrove(tmp_path), olmo(tmp_path, "0,8\n"), put(tmp_path / "x.bin", TOKENS)):
            file = open_foreign(path, dtype="uint16", eos=0)
            file.identity()
            with pytest.raises(AssertionError):
                starts(file)

    def test_damage_is_a_typed_error(self, tmp_path: Path) -> None:
        """One byte changed: the file opens and its documents ascend within it, or a TokenfeedError says why."""
        np.save(tmp_path / "n.npy", np.array(TOKENS, "<u2"))
        refused = 0
        for path in (beside(megatron(tmp_path), ".idx"), tmp_path / "n.npy", headed(tmp_path / "x.bin")):
            good = path.read_bytes()
            for at in [i for i in range(len(good)) if i < 144 or i >= 1024]:
                for value in {0, 1, 0x27, 0x5C, 0x7F, 0xFF} - {good[at]}:
                    path.write_bytes(good[:at] + bytes([value]) + good[at + 1 :])
                    try:
                        file = open_foreign(path, eos=None if path.suffix == ".npy" else 0)
                        found = [] if file.boundaries is None else starts(file)
                    except TokenfeedError:
                        refused += 1
                    else:
                        assert [0, *found, file.num_items] == sorted([0, *found, file.num_items])
        assert refused > 500


class TestIdentity:
    def test_does_not_depend_on_the_path(self, tmp_path: Path) -> None:
        prefix = megatron(tmp_path)
        (tmp_path / "other").mkdir()
        for suffix in (".idx", ".bin"):
            shutil.copy(beside(prefix, suffix), tmp_path / "other" / f"renamed{suffix}")
        same = {open_foreign(beside(prefix, suffix)).identity() for suffix in ("", ".idx", ".bin")}
        assert same == {open_foreign(tmp_path / "other" / "renamed").identity()}

    @pytest.mark.parametrize("num_bytes", [1, 4097, 16 * 4096, 1_000_001])
    def test_depends_on_what_is_sampled(self, tmp_path: Path, num_bytes: int) -> None:
        last = max(0, num_bytes - 4096)
        sampled = {0, last, num_bytes - 1, last // 15, last * 7 // 15, min(num_bytes - 1, last * 7 // 15 + 4095)}
        path = tmp_path / "x.dat"
        seen = set()
        for at in (None, *sampled):
            data = bytearray(num_bytes)
            if at is not None:
                data[at] = 1
            path.write_bytes(data)
            seen.add(open_foreign(path, dtype="uint8").identity())
        resize(path, 1)
        assert len(seen | {open_foreign(path, dtype="uint8").identity()}) == len(sampled) + 2

    def test_depends_on_how_it_is_read(self, tmp_path: Path) -> None:
        path = put(tmp_path / "x.bin", TOKENS)
        ways: list[dict[str, Any]] = [{}, {"dtype": "int16"}, {"dtype": "uint32"}, {"eos": 0}, {"eos": 3}]
        assert len({open_foreign(path, **way).identity() for way in ways}) == len(ways)
        assert open_foreign(path).identity() == open_foreign(path, dtype="uint16").identity()

    def test_depends_on_what_lies_beside(self, tmp_path: Path) -> None:
        path = datatrove(tmp_path)
        seen = {open_foreign(path).identity()}
        put(beside(path, ".index"), [4, 8], "<u8")
        seen.add(open_foreign(path).identity())
        beside(path, ".loss").unlink()
        assert len(seen | {open_foreign(path).identity()}) == 3
