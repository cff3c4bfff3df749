"""Documents in WebDataset archives (`.tar`, plain or compressed): files that follow each other by one key are a sample.

The key of a file is its path up to the first dot of its name, the rest is its ending: `a/0001.txt` and `a/0001.json`
are the sample `a/0001`. Its text is the `.txt` file, or what the `.json` object has under the text column; a text
column that is an ending, such as `en.txt`, names that file. The values to keep are those of the `.json`, and `__key__`.
A sample without a text is null; an archive of nothing else is refused. As in WebDataset, files without an ending,
hidden files and `__…__` are passed over.
"""

import contextlib
import logging
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, cast

from tokenfeed.errors import FormatError, quantity
from tokenfeed.text.sources.groups import LARGEST_GROUP, Cursor, GroupedText
from tokenfeed.text.sources.json_lines import LineError, parse_line, parse_object
from tokenfeed.text.sources.portions import GROUP_ROWS, Portion, Tally, TextRules
from tokenfeed.text.sources.stored import ByteStream, StoredFile
from tokenfeed.text.sources.tar import Member, TarReader

__all__ = ["WebDatasetText"]

_MOST_FILES = 4096
"""Most files of a sample."""
_SHOWN_ENDINGS = 10


class _Sample(NamedTuple):
    key: str
    files: dict[str, bytes]
    """Content of those files that hold its text, by their endings."""
    endings: tuple[str, ...]
    """Endings of its files, in words."""


class WebDatasetText(GroupedText[_Sample]):
    """The documents of one archive."""

    def _open(self) -> "_Samples":
        others = {"text": {"txt", "json"}}.get(self._column, set() if self._is_file else {"json"})
        return _Samples(self._file, {self._column} | others)

    @property
    def _is_file(self) -> bool:
        """Whether the text column can only be a file."""
        return self._column == "txt" or self._column.endswith(".txt")

    def cut(self, slice_bytes: int) -> list[int]:
        return [0, self._file.stamp()[0]]

    def read_slice(self, start: int, stop: int, rules: TextRules) -> Iterator[Portion]:
        """The documents of all samples, one sample in memory at a time."""
        tally, size = Tally(rules), rules.portion_bytes
        with contextlib.closing(self._open()) as samples:
            while (sample := samples.take()) is not None:
                reached = samples.stored_position()
                try:
                    text, kept = self._document(sample, rules.keep)
                except (LineError, FormatError) as error:
                    tally.malformed(self._where(sample), error)
                    continue
                if text is None:
                    tally.null(f"{self._where(sample)} ({', '.join(sample.endings)})")
                elif len(text) <= rules.long_bytes or rules.whole:
                    tally.add(text, kept)
                else:
                    pieces = (text[at : at + size] for at in range(0, len(text), size))
                    yield from tally.pieces(((piece, reached) for piece in pieces), kept)
                if tally.is_full:
                    yield tally.portion(reached)
        yield tally.portion(stop - start)

    def _ended(self, cursor: Cursor[_Sample]) -> None:
        """Say how many samples a stream leaves out, once; `prepare` has them in its report."""
        _, num_samples, num_texts = cursor.mark
        if num_texts < num_samples:
            told = f"{num_samples - num_texts:,} of {quantity(num_samples, 'sample')} have no text, and are left out"
            logging.getLogger("tokenfeed").warning("%s: %s", self._file.name, told)

    def _parse(self, row: _Sample) -> str | None:
        try:
            return self._document(row, ())[0]
        except (LineError, FormatError) as error:
            raise FormatError(f"{self._where(row)}: {error}") from error

    def _where(self, sample: _Sample) -> str:
        return f"{self._file.name}, sample {sample.key[:200]!r}"

    def _document(self, sample: _Sample, keep: Sequence[str]) -> tuple[str | None, dict[str, Any]]:
        """(text, None where there is none; values to keep) of a sample."""
        files, column, fields = sample.files, self._column, dict[str, Any]()
        name = column if column in files else "txt" if column == "text" and "txt" in files else None
        json = files.get("json", b"").removeprefix(b"\xef\xbb\xbf")
        if name is None:
            text, kept = parse_line(json, column, keep) if "json" in files and not self._is_file else (None, {})
        else:
            try:
                text = str(files[name], "utf-8-sig")
            except UnicodeDecodeError as error:
                raise FormatError(f"its .{name} is not UTF-8 ({error.reason} at byte {error.start:,})") from None
            if "json" in files and (keep or (name != column and b'"text"' in json)):
                fields = parse_object(json, column, keep)
            if name != column and fields.get(column, text) != text:
                raise FormatError("its .txt and the 'text' of its .json differ. text_column='txt' takes the .txt")
            kept = {each: fields.get(each) for each in keep}
        return text, {**kept, "__key__": sample.key} if "__key__" in keep else kept


class _Samples:
    """The samples of an archive, and how far they have been read. One thread at a time may use it."""

    def __init__(self, file: StoredFile, wanted: set[str]) -> None:
        """Of a sample, the files with the `wanted` endings, which have its text, are read, and the `.json`."""
        self.group = self._num_samples = self._num_texts = 0
        self._file, self._wanted, self._read = file, wanted, {*wanted, "json"}
        self._stream = file.stream()
        self._tar = TarReader(file.name, self._stream, file.stamp()[0] if file.codec is None else None)
        self._next: Member | None = None
        self._is_begun = False  # whether `_next` is the first file of the next sample
        self._seen: dict[str, None] = {}

    @property
    def mark(self) -> tuple[int, ...]:
        return self._tar.byte if self._next is None else self._next.byte_start, self._num_samples, self._num_texts

    def seek(self, mark: tuple[int, ...], group: int) -> None:
        byte, self._num_samples, self._num_texts = mark
        self._tar.seek(byte)
        self.group, self._next, self._is_begun = group, None, False

    def take_group(self, *, keep: bool) -> list[_Sample]:
        """As `Cursor.take_group`. Passing over a group reads headers alone, where the archive is not compressed."""
        found: list[_Sample] = []
        count = size = 0
        while count < GROUP_ROWS and (sample := self.take(LARGEST_GROUP - size, keep=keep)) is not None:
            count, size = count + 1, size + sum(map(len, sample.files.values()))
            if keep or not found:
                found.append(sample)
        self.group += 1 if found else 0
        return found

    def take(self, most_bytes: int = LARGEST_GROUP, *, keep: bool = True) -> _Sample | None:
        """The next sample; None at the end. Without `keep`, none of its files is read."""
        if not self._is_begun:
            self._next, self._is_begun = self._find(), True
        if self._next is None:
            if not self._num_texts:
                seen = f"; there are {', '.join(self._seen)}" if self._seen else ""
                raise FormatError(
                    f"{self._file.name} holds no text: {quantity(self._num_samples, 'sample')}, and none has a file "
                    f"ending in {', '.join(f'.{each}' for each in sorted(self._wanted))}{seen}. If another one is "
                    "text, give its ending: text_column=…"
                )
            return None
        key, files, endings = _split(self._next.name)[0], dict[str, bytes](), dict[str, None]()
        while self._next is not None and (name := _split(self._next.name))[0] == key:
            ending, most_bytes = name[1], most_bytes - (self._next.size if name[1] in self._read and keep else 0)
            if ending in endings or len(endings) == _MOST_FILES:
                what = f"two files ending in .{ending[:200]}" if ending in endings else f"over {_MOST_FILES:,} files"
                raise FormatError(f"{self._file.name}, sample {key[:200]!r} has {what}. Write the archive again")
            if most_bytes < 0:
                raise FormatError(
                    f"{self._file.name}: up to sample {key[:200]!r}, the texts have more than {LARGEST_GROUP:,} bytes, "
                    f"which is the most of one sample, and of {GROUP_ROWS:,} samples in a stream. Write such long "
                    "texts as files of their own, ending in .txt"
                )
            endings[ending] = None
            if ending in self._read and keep:
                files[ending] = self._tar.read()
            self._next = self._find()
        shown = tuple(f".{each[:20]}" for each in list(endings)[:_SHOWN_ENDINGS])
        if len(self._seen) < _SHOWN_ENDINGS:
            self._seen |= dict.fromkeys(shown)
        self._num_samples += 1
        self._num_texts += not self._wanted.isdisjoint(endings)
        return _Sample(key, files, shown)

    def stored_position(self) -> int:
        return cast(ByteStream, self._stream.raw).stored_position()

    def close(self) -> None:
        self._stream.close()

    def _find(self) -> Member | None:
        while (member := self._tar.next()) is not None and not _split(member.name)[0]:
            pass
        return member


def _split(name: str) -> tuple[str, str]:
    """The key and the ending of a file, both empty if it is in no sample: `a/0001.en.txt` is `a/0001` and `en.txt`."""
    folder, slash, base = name.rpartition("/")
    stem, dot, ending = base.partition(".")
    first = name.partition("/")[0]
    is_meta = len(first) >= 4 and first.startswith("__") and first.endswith("__")
    return (folder + slash + stem, ending.lower()) if stem and dot and not is_meta else ("", "")
