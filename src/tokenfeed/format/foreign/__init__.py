"""Token files of other systems, read in place: nothing is copied or converted.

| file | recognised by | module |
|---|---|---|
| Megatron-LM `.idx` + `.bin` | magic of the `.idx` | `megatron` |
| datatrove `.ds` | name | `datatrove` |
| NumPy `.npy` | magic | `plain` |
| OLMo-core `.npy` | name, and no magic | `plain` |
| llm.c, modded-nanogpt, NeMo `.bin` | magic | `plain` |
| litdata `.bin`, or a folder of them | `index.json` beside them | `litdata` |
| MosaicML Streaming `.mds`, or a folder of them | `index.json` beside them | `mds` |
| Arrow, or a folder of Hugging Face `datasets` | name | `arrow` |
| nanoGPT `.bin` | name, and none of the above | `plain` |
| anything, with `dtype` | | `plain` |
"""

from pathlib import Path
from typing import Any

import numpy as np

from tokenfeed.errors import FormatError, NotAStoreError
from tokenfeed.format import npy
from tokenfeed.format.foreign import arrow, litdata, mds, megatron
from tokenfeed.format.foreign.datatrove import open_datatrove
from tokenfeed.format.foreign.file import ForeignFile, as_dtype, is_file, peek, wrong
from tokenfeed.format.foreign.megatron import open_megatron
from tokenfeed.format.foreign.plain import is_headed, open_headed, open_npy, open_olmo, open_raw
from tokenfeed.format.foreign.recognise import describe
from tokenfeed.format.layout import MANIFEST
from tokenfeed.storage.local import reading

__all__ = ["ForeignFile", "open_all", "open_foreign"]

_CAN_BE_OPENED = (
    "a store, Megatron .idx + .bin, datatrove .ds, NumPy or OLMo-core .npy, nanoGPT, llm.c or NeMo .bin, litdata, MDS, "
    "Arrow; and with dtype=… any other file of plain items"
)


def open_all(path: Path, *, dtype: Any = None, eos: int | None = None) -> list[ForeignFile]:
    """As `open_foreign`, also for a folder of litdata, MDS or Arrow, whose files are one stream."""
    with reading(path):
        is_folder = path.is_dir()
    if not is_folder:
        return [open_foreign(path, dtype=dtype, eos=eos)]
    if (shards := mds.find_index(path)) is not None:
        return mds.open_mds(path, shards, dtype=as_dtype(dtype))
    if files := arrow.find_files(path):
        return [arrow.open_arrow(each, dtype=as_dtype(dtype)) for each in files]
    index = litdata.find_index(path)
    if index is None or not index.chunks:
        how = "`tokenfeed prepare` makes a store of text, tokenfeed.Writer of tokens"
        raise NotAStoreError(describe(path) or f"{path} is not a store: it has no {MANIFEST}. {how}")
    return litdata.open_litdata(path, index, dtype=as_dtype(dtype))


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
    if path.suffix == ".idx":
        return open_megatron(path, dtype=given)
    if path.suffix in (".arrow", ".feather", ".ipc"):
        return arrow.open_arrow(path, dtype=given)
    if path.suffix == ".mds" and (shards := mds.find_index(path.parent)) is not None:
        for shard in mds.open_mds(path.parent, shards, name=path.name, dtype=given):
            return shard
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
    if path.suffix == ".bin" and (chunks := litdata.find_index(path.parent)) is not None:
        for chunk in litdata.open_litdata(path.parent, chunks, name=path.name, dtype=dtype):
            return chunk
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
