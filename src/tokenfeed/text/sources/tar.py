"""`TarReader`: the regular files in a tar archive, one after the other. Nothing is unpacked to disk.

It knows ustar, pax and GNU's long names. A name is never a path here, links lead nowhere, and a size is compared with
what the file has before anything of it is read. An archive that is cut short, or joined to another one, is an error.
"""

import re
from typing import IO, NamedTuple, NoReturn

from tokenfeed.errors import CorruptionError, FormatError

__all__ = ["Member", "TarReader"]

_BLOCK = 512
_READ_BYTES = 1 << 20
_LARGEST_HEADER = 1 << 20
"""Most bytes of a long name, or of pax records."""
_OCTAL = re.compile(rb" *([0-7]*)[ \0]*")
_WITHOUT_CONTENT = b"123456"  # links, devices, folders, pipes
_ABOUT_THE_NEXT = b"LKxXg"


class Member(NamedTuple):
    """A regular file."""

    name: str
    size: int
    byte_start: int
    """Byte of the archive at which its headers begin."""


class TarReader:
    """Goes through an archive, from front to back. One thread may use it."""

    def __init__(self, name: str, stream: IO[bytes], num_bytes: int | None) -> None:
        """`num_bytes` is the size of an archive that can seek; None for one that is read as it is decompressed."""
        self.byte = 0
        self._name, self._stream, self._num_bytes = name, stream, num_bytes
        self._left = self._padding = 0  # bytes of the content of the last member that were not read

    def seek(self, byte: int) -> None:
        """Go to a byte at which a member begins."""
        self._stream.seek(byte)
        self.byte, self._left, self._padding = byte, 0, 0

    def next(self) -> Member | None:
        """The next regular file; None at the end. What was not read of the one before is passed over."""
        self._pass(self._left + self._padding)
        self._left = self._padding = 0
        start, long_name, records = self.byte, None, dict[bytes, bytes]()
        while (header := self._take_header()) is not None:
            kind, name, size = header
            if kind in _ABOUT_THE_NEXT:
                if size > _LARGEST_HEADER:
                    self._damaged(f"a header of {size:,} bytes; at most {_LARGEST_HEADER:,} are read")
                content = self._take(size + -size % _BLOCK)[:size]
                if kind == b"L":
                    long_name = content.partition(b"\0")[0]
                elif kind in b"xXg":
                    found = self._parse_records(content)
                    if kind == b"g" and found.keys() & {b"path", b"size"}:
                        self._damaged("a header for all members gives a name or a size")
                    records |= found if kind != b"g" else {}
                continue
            name = records.get(b"path", name if long_name is None else long_name)
            if b"size" in records:
                size = self._parse_size(records[b"size"])
            is_sparse = kind == b"S" or any(key.startswith(b"GNU.sparse") for key in records)
            is_file = kind not in _WITHOUT_CONTENT and not name.endswith(b"/")
            if is_file:
                self._left, self._padding = size, -size % _BLOCK
                if self._num_bytes is not None and self.byte + size + self._padding > self._num_bytes:
                    self._cut_short(f"{self._shown(name)} has {size:,} bytes by its header")
            if is_sparse:
                raise FormatError(f"{self._name}: {self._shown(name)} is a sparse file. Write the archive without them")
            if is_file and kind in b"07\0":
                return Member(name.decode(errors="backslashreplace"), size, start)
            self._pass(self._left + self._padding)
            self._left = self._padding = 0
            start, long_name, records = self.byte, None, {}
        return None

    def read(self) -> bytes:
        """The content of the member that was found last. Memory is taken for what is there, not for what is claimed."""
        size, self._left = self._left, 0
        return self._take(size)

    def _take_header(self) -> tuple[bytes, bytes, int] | None:
        """(kind, name, size) of a header; None at the end of the archive."""
        block = self._take(_BLOCK, may_end=True)
        if not block:
            self._cut_short("the empty block that ends an archive is missing")
        if not any(block):
            while rest := self._stream.read(_READ_BYTES):
                if rest.strip(b"\0"):
                    self._damaged("more follows after its end: archives that were joined are read one by one")
            return None
        stated, total = _OCTAL.fullmatch(block[148:156]), sum(block) - sum(block[148:156]) + 8 * ord(" ")
        high = sum(byte > 127 for byte in block) - sum(byte > 127 for byte in block[148:156])
        if stated is None or int(stated[1] or b"0", 8) not in (total, total - 256 * high):
            self._damaged("no header where one should be, or one with a wrong checksum")
        name, prefix = block[:100].partition(b"\0")[0], block[345:500].partition(b"\0")[0]
        is_ustar = block[257:263] == b"ustar\0"
        return block[156:157], prefix + b"/" + name if prefix and is_ustar else name, self._parse_octal(block[124:136])

    def _parse_octal(self, field: bytes) -> int:
        if field[0] == 0x80:  # of GNU, for more than 8 GiB
            return int.from_bytes(field[1:], "big")
        digits = _OCTAL.fullmatch(field)
        if digits is None:
            self._damaged(f"the size of a member is {field!r}")
        return int(digits[1] or b"0", 8)

    def _parse_size(self, value: bytes) -> int:
        if not value.isdigit() or len(value) > 20:
            self._damaged(f"the size of a member is {value[:80]!r}")
        return int(value)

    def _parse_records(self, content: bytes) -> dict[bytes, bytes]:
        """The records of a pax header: `30 path=some/name\\n`, where 30 counts all of it."""
        found, at = {}, 0
        while at < len(content):
            space = content.find(b" ", at, at + 10)
            digits = content[at : max(at, space)]
            end = at + int(digits) if digits.isdigit() else at
            key, equals, value = content[space + 1 : end - 1].partition(b"=")
            if not space < end <= len(content) or content[end - 1 : end] != b"\n" or not equals:
                self._damaged("a pax header that cannot be understood")
            found[key] = value
            at = end
        return found

    def _take(self, size: int, *, may_end: bool = False) -> bytes:
        parts, left = [], size
        while left and (part := self._stream.read(min(left, _READ_BYTES))):
            parts.append(part)
            left -= len(part)
        if left and (parts or not may_end):
            self._cut_short(f"{size:,} bytes should follow")
        self.byte += size - left
        return b"".join(parts)

    def _pass(self, size: int) -> None:
        if size and self._num_bytes is not None:
            self._stream.seek(self.byte + size)
            self.byte += size
            return
        while size:
            size -= len(self._take(min(size, _READ_BYTES)))

    def _cut_short(self, why: str) -> NoReturn:
        self._damaged(f"it was cut short ({why})")

    def _damaged(self, what: str) -> NoReturn:
        raise CorruptionError(f"{self._name}, at byte {self.byte:,} of the archive: {what}. Fetch or write it again")

    def _shown(self, name: bytes) -> str:
        return f"{name.decode(errors='replace')!a:.200}"
