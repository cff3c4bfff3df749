"""`combine`: makes one store of several without copying anything."""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from tokenfeed.errors import ArgumentError
from tokenfeed.format.layout import MANIFEST
from tokenfeed.format.manifest import Manifest, Reference
from tokenfeed.storage.folder import PathLike, display, open_folder
from tokenfeed.store.resolve import concatenate, resolve

__all__ = ["combine"]


def combine(stores: Sequence[PathLike], out: PathLike, *, dtype: Any = None, eos: int | None = None) -> None:
    """Make `out` a store that consists of `stores`, one after the other.

    This only writes a manifest. It names the others by relative path (remote ones by address) and by identity, so that
    opening the combined store detects a part that has changed. `dtype` and `eos` are as for `open`.
    """
    if isinstance(stores, str | os.PathLike) or not stores:
        raise ArgumentError("combine expects a list of at least one store")
    folder = open_folder(out)
    contents = [(display(store), resolve(store, dtype=dtype, eos=eos)) for store in stores]
    together = concatenate(contents)
    dtype_name = None if dtype is None else np.dtype(dtype).str
    references = tuple(Reference(folder.refer(name), content.identity, dtype_name, eos) for name, content in contents)
    manifest = Manifest(together.columns, together.spans, together.tokenizer, stores=references)
    folder.make()
    if not folder.create(MANIFEST, manifest.to_json().encode()):
        raise ArgumentError(f"{folder} already holds a store; choose another folder")
