"""Plain text: one file is one document, UTF-8, with or without a byte-order mark."""

import codecs
from collections.abc import Iterator

from tokenfeed.errors import FormatError
from tokenfeed.text.sources.portions import MemoryGroup, Portion, Tally, TextRules
from tokenfeed.text.sources.stored import ByteStream, StoredFile

__all__ = ["PlainText"]

_LARGEST = 1 << 30


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
        with self._file.stream() as stream:
            data = stream.read(_LARGEST + 1)
        if len(data) > _LARGEST:
            raise FormatError(
                f"{self._file.name} has more than {_LARGEST:,} bytes, which a stream would have to hold in memory; "
                "`tokenfeed prepare` reads text of any length"
            )
        try:
            return MemoryGroup([str(data, "utf-8-sig")], str, start)
        except UnicodeDecodeError as error:
            raise FormatError(f"{self._file.name}: it is not UTF-8 ({error.reason})") from error

    def cut(self, slice_bytes: int) -> list[int]:
        return [0, self._file.stamp()[0]]

    def read_slice(self, start: int, stop: int, rules: TextRules) -> Iterator[Portion]:
        """The file as one document. With on_error="skip" it is read twice, the first time to see if all is UTF-8."""
        tally = Tally(rules)
        try:
            if rules.on_error == "skip":
                for _ in self._decode(rules):
                    pass
            yield from tally.pieces(self._decode(rules), dict.fromkeys(rules.keep))
        except UnicodeDecodeError as error:
            tally.malformed(self._file.name, f"it is not UTF-8 ({error.reason})")
        yield tally.portion(stop - start)

    def digest(self) -> str:
        return self._file.digest()

    def close(self) -> None:
        """Nothing stays open."""

    def _decode(self, rules: TextRules) -> Iterator[tuple[str, int]]:
        """(text, bytes of the file read so far)."""
        decoder = codecs.getincrementaldecoder("utf-8-sig")()
        with self._file.stream() as stream:
            raw = stream.raw
            assert isinstance(raw, ByteStream)
            num_bytes = rules.long_bytes  # a document that is not longer comes whole
            while data := stream.read(num_bytes):
                yield decoder.decode(data), raw.stored_position()
                num_bytes = rules.portion_bytes
            yield decoder.decode(b"", True), raw.stored_position()
