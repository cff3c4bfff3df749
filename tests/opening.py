"""Files opened under limits: where few may be open at once, and by somebody who may not open all."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tokenfeed


def open_store(path: Path | str, *, open_files: int | None = None, **options: Any) -> tokenfeed.Store:
    """The store, of which at most `open_files` files stay open; None for as many as the process may have.

    Every further file is opened and closed around each read.
    """
    with pytest.MonkeyPatch.context() as patch:
        if open_files is not None:
            patch.setattr("tokenfeed.storage.files.default_open_files", lambda: open_files)
        return tokenfeed.open(path, **options)


@contextlib.contextmanager
def as_nobody() -> Iterator[None]:
    """Root may read and write everything; so be somebody else for a while, where we are root."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(before)
