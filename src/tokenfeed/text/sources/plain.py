"""Plain text: one file is one document, UTF-8, with or without a byte-order mark."""

from collections.abc import Iterator

from tokenfeed.errors import FormatError
from tokenfeed.text.sources.portions import LARGEST_DOCUMENT, MemoryGroup, Portion, Tally, TextRules
from tokenfeed.text.sources.stored import StoredFile

__all__ = ["PlainText"]


class PlainText:
    """A file that is one group of one row, and one slice."""

    def __init__(self, file: StoredFile) -> None:
        self._file = file

    def num_groups(self) -> int:
        return 1

    def has_group(self, group: int) -> bool:
        return group == 0

    def read(self, group: int, start: int = 0) -> MemoryGroup[str] | None:
        if group > 0:
            return None
        text, problem = self._read()
        if problem:
            raise FormatError(f"{self._file.name}: {problem}")
        return MemoryGroup([text], str, start)

    def cut(self, slice_bytes: int) -> list[int]:
        return [0, self._file.stamp()[0]]

    def read_slice(self, start: int, stop: int, rules: TextRules) -> Iterator[Portion]:
        """The file as one document."""
        tally = Tally(rules)
        text, problem = self._read()
        if problem:
            tally.malformed(self._file.name, problem)
        else:
            tally.add(text, dict.fromkeys(rules.keep))
        yield tally.portion(stop - start)

    def digest(self) -> str:
        return self._file.digest()

    def close(self) -> None:
        """Nothing stays open."""

    def _read(self) -> tuple[str, str]:
        """(the text, why it is no document)."""
        with self._file.stream() as stream:
            data = stream.read(LARGEST_DOCUMENT + 1)
        if len(data) > LARGEST_DOCUMENT:
            return "", f"it has more than {LARGEST_DOCUMENT:,} bytes, the most of a document"
        try:
            return str(data, "utf-8-sig"), ""
        except UnicodeDecodeError as error:
            return "", f"it is not UTF-8 ({error.reason})"
