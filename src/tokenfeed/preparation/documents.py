"""Documents of a slice, in bounded memory: however large the file, and however long a document."""

from collections.abc import Iterator
from pathlib import Path

from tokenfeed.errors import CorruptionError
from tokenfeed.preparation.inputs import InputFile, Slice, check_unchanged, kind_of
from tokenfeed.preparation.reading_chunks import Chunk, Problem, Reading
from tokenfeed.preparation.reading_files import shown
from tokenfeed.storage.address import is_remote

__all__ = ["Chunk", "Problem", "Reading", "read_slice"]


def read_slice(file: InputFile, slice: Slice, how: Reading) -> Iterator[Chunk]:  # noqa: A002
    """The documents of a slice, in order. All slices of a file one behind the other give those of the file.

    Closing the iterator lets go of the file. A file that is not the one that was found, or changes while it is read, is
    a CorruptionError.
    """
    check_unchanged(file)
    before = _stamp(file)
    if kind_of(file.path) == "parquet":
        from tokenfeed.preparation.reading_parquet import read_parquet

        yield from read_parquet(file, slice, how)
    elif kind_of(file.path) == "txt":
        from tokenfeed.preparation.reading_text import read_text

        yield from read_text(file, slice, how)
    else:
        from tokenfeed.preparation.reading_jsonl import read_jsonl

        yield from read_jsonl(file, slice, how)
    if _stamp(file) != before:
        raise CorruptionError(
            f"{shown(file.path)} was changed while it was being read. Start again with files that stay as they are."
        )


def _stamp(file: InputFile) -> tuple[int, int]:
    if is_remote(file.path):  # its reader takes care that all bytes are of one version
        return 0, 0
    stat = Path(file.path).stat()
    return stat.st_size, stat.st_mtime_ns
