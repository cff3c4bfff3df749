"""Documents in tar archives, as WebDataset has them: files of one name with several endings are one sample.

    a.txt  a.json  b.txt  b.json       two samples; the text is the .txt, or what the .json has under the text column

1,024 samples are a group. Finding them reads the headers of all files once.
"""

import json
import tarfile
import threading
from collections.abc import Mapping, Sequence
from typing import IO, Any

from tokenfeed.errors import CorruptionError, FormatError
from tokenfeed.storage.local import reading
from tokenfeed.text.sources.rows import GROUP_ROWS, RowText
from tokenfeed.text.sources.stored import StoredFile

__all__ = ["TarText"]

_TEXTS = ("txt", "text")
Member = tuple[int, int]
"""First byte and size."""


class TarText(RowText):
    """The samples of one archive."""

    def __init__(self, file: StoredFile, column: str) -> None:
        super().__init__(file.name, column)
        self._file = file
        self._lock = threading.Lock()
        self._found: list[dict[str, Member]] | None = None

    def _samples(self) -> list[dict[str, Member]]:
        """Files by their endings, for every sample that has text or JSON."""
        with self._lock:
            if self._found is None:
                samples: dict[str, dict[str, Member]] = {}
                try:
                    with reading(self.name), self._file.stream() as stream, tarfile.open(fileobj=stream) as archive:
                        for each in archive:
                            folder, _, name = each.name.rpartition("/")
                            stem, _, ending = name.partition(".")
                            if each.isreg() and ending in (*_TEXTS, "json", self.column):
                                samples.setdefault(f"{folder}/{stem}", {})[ending] = each.offset_data, each.size
                        stream.seek(archive.offset)  # tarfile takes damage and an early end for the end
                        if stream.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
                            raise CorruptionError(
                                f"{self.name} has no end at byte {archive.offset:,}, where its last file ends: it was "
                                "cut short or damaged. Fetch or write it again."
                            )
                except tarfile.TarError as error:
                    raise FormatError(f"{self.name} is no tar archive that can be read: {error}") from error
                self._found = list(samples.values())
            return self._found

    def size(self) -> int:
        return self._file.stamp()[0]

    def num_groups(self) -> int:
        return -(-len(self._samples()) // GROUP_ROWS)

    def has_group(self, group: int) -> bool:
        return group < self.num_groups()

    def digest(self) -> str:
        return self._file.digest()

    def rows(self, group: int, columns: Sequence[str]) -> Sequence[Any] | None:
        if not self.has_group(group):
            return None
        samples = self._samples()[group * GROUP_ROWS : (group + 1) * GROUP_ROWS]
        with reading(self.name), self._file.stream() as stream:
            return [self._row(stream, sample) for sample in samples]

    def _row(self, stream: IO[bytes], sample: Mapping[str, Member]) -> Mapping[str, Any]:
        row: dict[str, Any] = {}
        if "json" in sample:
            try:
                value = json.loads(self._read(stream, sample["json"]))
            except (ValueError, RecursionError) as error:
                raise FormatError(f"{self.name}: a .json at byte {sample['json'][0]:,} is none ({error})") from error
            row |= value if isinstance(value, dict) else {}
        for ending in (*_TEXTS, self.column):
            if ending in sample:
                row[self.column] = self._read(stream, sample[ending])
                break
        return row

    def _read(self, stream: IO[bytes], member: Member) -> bytes:
        stream.seek(member[0])
        data = stream.read(member[1])
        if len(data) < member[1]:
            raise CorruptionError(f"{self.name} ended early: a file of {member[1]:,} bytes begins at {member[0]:,}")
        return data
