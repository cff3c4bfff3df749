"""Token files of other systems, read in place: nothing is copied or converted.

| file | recognised by | module |
|---|---|---|
| Megatron-LM `.idx` + `.bin` | magic of the `.idx` | `megatron` |
| datatrove `.ds` | name | `datatrove` |
| NumPy `.npy` | magic | `plain` |
| OLMo-core `.npy` | name, and no magic | `plain` |
| llm.c, modded-nanogpt, NeMo `.bin` | magic | `plain` |
| nanoGPT `.bin` | name, and none of the above | `plain` |
| anything, with `dtype` | | `plain` |
"""

from pathlib import Path
from typing import Any

import numpy as np

from tokenfeed.errors import FormatError, NotAStoreError
from tokenfeed.format import npy
from tokenfeed.format.foreign import megatron
from tokenfeed.format.foreign.datatrove import open_datatrove
from tokenfeed.format.foreign.file import ForeignFile, as_dtype, is_file, peek, wrong
from tokenfeed.format.foreign.megatron import open_megatron
from tokenfeed.format.foreign.plain import is_headed, open_headed, open_npy, open_olmo, open_raw
from tokenfeed.format.foreign.recognise import describe, describe_other

__all__ = ["ForeignFile", "open_foreign"]

_CAN_BE_OPENED = (
    "a store, Megatron .idx + .bin, datatrove .ds, NumPy or OLMo-core .npy, nanoGPT, llm.c or NeMo .bin; and with "
    "dtype=… any other file of plain items"
)


def open_foreign(path: Path, *, dtype: Any = None, eos: int | None = None) -> ForeignFile:
    """The token file at a path, or at a Megatron prefix. O(1): reads only headers and the ends of tables.

    `dtype` is needed for files that do not record it, and must agree with those that do. A `.bin` with `dtype` is raw,
    whatever it begins with. `eos` ends documents in files without boundaries. Any contradiction between a file's
    header, its size and the files beside it raises CorruptionError: here if O(1) reads find it, else when documents are
    looked for.
    """
    given = as_dtype(dtype)
    if not is_file(path):
        index = Path(f"{path}.idx")
        if is_file(index):
            return open_megatron(index, dtype=given)
        raise NotAStoreError(describe(path) or f"there is no file or folder {path}. tokenfeed opens {_CAN_BE_OPENED}")
    if told := describe_other(path):
        raise NotAStoreError(told)
    if path.suffix == ".idx":
        return open_megatron(path, dtype=given)
    if path.suffix == ".ds":
        return open_datatrove(path, dtype=given, eos=eos)
    return _open_by_content(path, given, eos)


def _open_by_content(path: Path, dtype: np.dtype[Any] | None, eos: int | None) -> ForeignFile:
    start = peek(path, len(megatron.MAGIC))
    if start == megatron.MAGIC:
        raise wrong(path, "name", expected="a name in .idx for a Megatron index", found=path.name, kind=FormatError)
    if start.startswith(npy.MAGIC):
        return open_npy(path, dtype=dtype, eos=eos)
    if path.suffix == ".npy":
        return open_olmo(path, dtype=dtype, eos=eos)
    index = path.with_suffix(".idx")
    if path.suffix == ".bin" and megatron.is_index(index):
        return open_megatron(index, dtype=dtype)
    if dtype is not None:
        return open_raw(path, dtype=dtype, eos=eos)
    if is_headed(start):
        return open_headed(path, eos=eos)
    if path.suffix != ".bin":
        raise NotAStoreError(describe(path) or f"{path} is not a file that tokenfeed knows. It opens {_CAN_BE_OPENED}")
    if is_file(index):  # a Megatron file with a damaged index must not be read as nanoGPT's
        found = repr(peek(index, len(megatron.MAGIC)))
        expected = f"{megatron.MAGIC!r} (Megatron). If {path.name} is not Megatron's but raw items, give their dtype"
        raise wrong(index, "magic", expected=expected, found=found, kind=FormatError)
    return open_raw(path, dtype=np.dtype("<u2"), eos=eos)
