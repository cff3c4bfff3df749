"""`LanceTable`: the rows of a Lance dataset (a folder, `.lance`), read by the package `pylance`.

It looks like a `datasets.Dataset`: slices of it are columns. Lance compresses and packs its values, so token ids are
not read in place: `prepare` reads them with `tokens_column`.
"""

import contextlib
import importlib
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenfeed.errors import DependencyError, FormatError

__all__ = ["LanceTable", "is_lance"]


def is_lance(path: Path) -> bool:
    """Whether a folder is a Lance dataset."""
    return path.suffix == ".lance" or (path / "_versions").is_dir()


class LanceTable:
    """A dataset in the version that it has when it is opened. Any number of threads may use it; it can be pickled."""

    def __init__(self, path: str, version: int | None = None, columns: Sequence[str] | None = None) -> None:
        self._path, self._columns = path, columns
        self._version = self._data.version if version is None else version

    @cached_property
    def _data(self) -> Any:
        try:
            package = importlib.import_module("lance")
        except ImportError as error:
            raise DependencyError(f"{self._path}: Lance datasets need pip install pylance ({error})") from error
        with self._explaining():
            return package.dataset(self._path, version=self.__dict__.get("_version"))

    @property
    def column_names(self) -> list[str]:
        return list(self._columns or self._data.schema.names)

    def select_columns(self, column_names: Sequence[str]) -> "LanceTable":
        return LanceTable(self._path, self._version, column_names)

    def __len__(self) -> int:
        return self._num_rows

    @cached_property
    def _num_rows(self) -> int:
        with self._explaining():
            return int(self._data.count_rows())

    def __getitem__(self, index: Any) -> dict[str, Any]:
        """The columns of the rows of a slice; a number gives one row."""
        start, stop, _ = index.indices(len(self)) if isinstance(index, slice) else (index, index + 1, 1)
        with self._explaining():
            table = self._data.to_table(columns=self.column_names, offset=start, limit=stop - start)
            columns: dict[str, Any] = table.to_pydict()
        return columns if isinstance(index, slice) else {name: values[0] for name, values in columns.items()}

    def __reduce__(self) -> tuple[Any, ...]:
        return LanceTable, (self._path, self._version, self._columns)

    @contextlib.contextmanager
    def _explaining(self) -> Iterator[None]:
        try:
            yield
        except (ValueError, OSError, RuntimeError) as error:
            told = " ".join(str(error).split())[:300]
            raise FormatError(f"{self._path} cannot be read as a Lance dataset: {told}") from error
