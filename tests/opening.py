"""Stores opened where few files may be open at once: every further file is opened and closed around each read."""

from pathlib import Path
from typing import Any

import pytest

import tokenfeed


def open_store(path: Path | str, *, open_files: int | None = None, **options: Any) -> tokenfeed.Store:
    """The store, of which at most `open_files` files stay open; None for as many as the process may have."""
    with pytest.MonkeyPatch.context() as patch:
        if open_files is not None:
            patch.setattr("tokenfeed.storage.files.default_open_files", lambda: open_files)
        return tokenfeed.open(path, **options)
