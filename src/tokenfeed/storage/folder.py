"""`Folder`: a folder of files, local or remote. Stores reach files only by this and by `Part`."""

import errno
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from tokenfeed.errors import TokenfeedError
from tokenfeed.storage import objects
from tokenfeed.storage.address import clean, is_remote, join, local_path, parse, refer, resolve
from tokenfeed.storage.hub import address_of, pin
from tokenfeed.storage.local import create_bytes, read_bytes, reading, replace_bytes, writing

__all__ = ["Folder", "LocalFolder", "PathLike", "RemoteFolder", "display", "is_missing", "open_folder"]

PathLike = str | os.PathLike[str]


def open_folder(path: "PathLike | Folder") -> "Folder":
    """The folder at a path or address. Reads nothing."""
    if isinstance(path, LocalFolder | RemoteFolder):
        return path
    return RemoteFolder(os.fspath(path)) if is_remote(path) else LocalFolder(local_path(path))


def display(path: PathLike) -> str:
    """A path or address, absolute and without secrets, to be shown and written to files."""
    if not is_remote(path):
        return str(Path(local_path(path)).absolute())
    text = os.fspath(path)
    return str(pin(text)) if text.startswith("hf://") else clean(text)


def is_missing(error: Exception) -> bool:
    """Whether an error says that there is no such file."""
    return isinstance(error, OSError) and error.errno in (errno.ENOENT, errno.ENOTDIR)


class LocalFolder:
    """A folder of the file system, which may not exist yet. `str()` of it is its path.

    Names may have parts: `a/b` is the file b in the folder a.
    """

    __slots__ = ("_path", "_text")

    can_list = True

    def __init__(self, path: PathLike) -> None:
        self._path = Path(path)
        self._text = str(self._path)

    def __str__(self) -> str:
        return self._text

    @property
    def local(self) -> Path | None:
        """The path, for a folder on this machine."""
        return self._path

    @property
    def identity(self) -> str:
        """A text that two folders share only if they are one."""
        return str(self._path.resolve())

    def path(self, name: str) -> str:
        return os.path.join(self._text, name)

    def read(self, name: str) -> bytes:
        return read_bytes(self._path / name)

    def read_all(self, names: Sequence[str]) -> list[bytes]:
        """The contents of many small files."""
        return [self.read(name) for name in names]

    def files(self, name: str) -> list[str]:
        """The names of what is in a folder of it, sorted; nothing if there is no such folder."""
        folder = self._path / name
        with reading(str(folder)):
            return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []

    def exists(self, name: str) -> bool:
        with reading(self.path(name)):
            return (self._path / name).is_file()

    def folders(self, marker: str) -> dict[str, bool]:
        """The folders in it, sorted, without those that begin with a dot; and whether each has a file `marker`."""
        with reading(self._text), os.scandir(self._path) as entries:
            names = sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
        return {name: self.exists(f"{name}/{marker}") for name in names}

    def make(self) -> None:
        """Make it a folder that can be written to, and those it is in."""
        with writing(self._path):
            self._path.mkdir(parents=True, exist_ok=True)

    def replace(self, name: str, data: bytes, *, sync: bool = True) -> None:
        """Put a whole file in place: readers see the old bytes or the new ones."""
        replace_bytes(self._path / name, data, sync=sync)

    def create(self, name: str, data: bytes, *, sync: bool = True) -> bool:
        """Put a whole file in place unless there is one. Returns whether this call made it."""
        return create_bytes(self._path / name, data, sync=sync)

    def remove(self, name: str) -> None:
        """Remove a file, or a folder with all that is in it, if it is there."""
        path = self._path / name
        with writing(path):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    def resolve(self, reference: str) -> str:
        """The path or address that a reference in one of its files stands for."""
        return address_of(reference) if is_remote(reference) else self.path(local_path(reference))

    def refer(self, path: PathLike) -> str:
        """How a file in it refers to a path or address: relative if that is possible."""
        return display(path) if is_remote(path) else os.path.relpath(local_path(path), self._path)


class RemoteFolder:
    """A prefix in an object store, or a path on an HTTP server, which can be neither listed nor written to.

    The members are those of `LocalFolder`. `str()` of it, and its identity, are its address without secrets.
    """

    __slots__ = ("can_list", "identity")

    local: Path | None = None

    def __init__(self, uri: str) -> None:
        self.identity = address_of(uri)
        self.can_list = not parse(self.identity).is_http

    def __str__(self) -> str:
        return self.identity

    def path(self, name: str) -> str:
        return join(self.identity, name)

    def read(self, name: str) -> bytes:
        return objects.read(self.path(name))

    def read_all(self, names: Sequence[str]) -> list[bytes]:
        return objects.read_all([self.path(name) for name in names])

    def files(self, name: str) -> list[str]:
        return objects.list_keys(self.path(name))

    def exists(self, name: str) -> bool:
        return objects.exists(self.path(name))

    def names(self) -> list[str]:
        """What lies directly in it, for advice; nothing if the server will not say, or at most an `index.json`."""
        try:
            if not self.can_list:
                return ["index.json"] if self.exists("index.json") else []
            return [name for name, _ in objects.list_names(self.identity)]
        except TokenfeedError:
            return []

    def folders(self, marker: str) -> dict[str, bool]:
        """One request for every thousand objects in it."""
        found: dict[str, bool] = {}
        for key in objects.list_keys(self.identity):
            name, separator, rest = key.partition("/")
            if separator and not name.startswith("."):
                found[name] = found.get(name, False) or rest == marker
        return dict(sorted(found.items()))

    def make(self) -> None:
        objects.check_can_write(self.identity)  # there are no folders, only names with slashes in them

    def replace(self, name: str, data: bytes, *, sync: bool = True) -> None:
        objects.write(self.path(name), data)

    def create(self, name: str, data: bytes, *, sync: bool = True) -> bool:
        return objects.write(self.path(name), data, create=True)

    def remove(self, name: str) -> None:
        keys = [f"{name}/{key}" for key in objects.list_keys(self.path(name))]
        for key in [*keys, *([name] if self.exists(name) else [])]:
            objects.delete(self.path(key))

    def resolve(self, reference: str) -> str:
        return resolve(self.identity, reference)

    def refer(self, path: PathLike) -> str:
        return refer(self.identity, display(path)) if is_remote(path) else Path(display(path)).as_uri()


Folder = LocalFolder | RemoteFolder
