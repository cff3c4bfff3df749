"""Documents out of files of text, row group by row group."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from tokenfeed.errors import ArgumentError, CorruptionError, PlanMismatchError, StateError
from tokenfeed.plan.state import check_parts
from tokenfeed.text.sources.files import TextFiles
from tokenfeed.text.streaming.chunks import Encoded
from tokenfeed.text.streaming.cursors import LaneCursor
from tokenfeed.text.streaming.rows import StreamRows
from tokenfeed.text.streaming.source import DocumentSource
from tokenfeed.text.tokenizer.tokenizer import Tokenizer
from tokenfeed.types import Array, Ints

__all__ = ["RowGroups"]


class RowGroups(DocumentSource):
    """Documents of a stream that come from files."""

    def __init__(
        self,
        files: TextFiles,
        tokenizer: Tokenizer,
        *,
        sharding: str = "global",
        seed: int | None = None,
        refill_size: int = 128,
        threads: int = 1,
    ) -> None:
        """`threads` is the number of threads per tokenizer call, where the engine has threads of its own."""
        super().__init__(tokenizer, tokenizer.dtype)
        if sharding not in ("global", "per_file"):
            raise ArgumentError(f"sharding is {sharding!r}; it must be 'global' or 'per_file'")
        if sharding == "per_file" and seed is not None:
            raise ArgumentError("seed permutes row groups over all files; leave it out, or choose sharding='global'")
        if refill_size < 1:
            raise ArgumentError(f"refill_size is {refill_size}; it must be at least 1")
        self._files = self._all_files = self._texts = files
        self._sharding = sharding
        self._restart = "epoch" if sharding == "global" else "part"
        self._seed = seed
        self._refill_size = refill_size
        self._threads = threads if tokenizer.is_parallel else 1

    def encode(self, texts: list[str]) -> Encoded:
        return Encoded(*self._tokenizer.encode_batch(texts, threads=self._threads, prepend=self.bos))

    def fetch(self, references: Ints) -> Encoded:
        encoded = super().fetch(references)
        short = np.flatnonzero(np.diff(encoded.offsets) <= references[:, 3])
        if short.size:
            file, group, row, done = references[short[0]].tolist()
            raise CorruptionError(
                f"{self._files.paths[file]}, row group {group}, row {row}: the state says that {done} tokens of this "
                "document were delivered, but it has no more than that; the state was made from another text"
            )
        return encoded

    def make_rows(self, packed: Array, pieces: Ints, samples: Ints, *, crosses_documents: bool) -> StreamRows:
        return StreamRows(packed, pieces, samples, crosses_documents=crosses_documents)

    def after_nanochat(self, state: Mapping[str, Any], lane: int, num_lanes: int) -> LaneCursor:
        """Where nanochat goes on: after the row group that its state names. Its buffer is lost, as it is there."""
        file, group, epoch = (state.get(name, 1) for name in ("pq_idx", "rg_idx", "epoch"))
        stops = {"pq_idx": len(self._files), "rg_idx": 1 << 62, "epoch": 1 << 62}
        for (name, stop), number in zip(stops.items(), (file, group, epoch), strict=True):
            if type(number) is not int or not 0 <= number < stop:
                raise StateError(f"{name} of nanochat's state is {str(number)[:80]}; there is no such place")
        return LaneCursor(max(0, epoch - 1), file, (group // num_lanes + 1) * num_lanes, lane)

    def parts(self) -> dict[str, Any]:
        return self._parts(self._files)

    def _parts(self, files: TextFiles) -> dict[str, Any]:
        names = json.dumps(files.names).encode()
        return {
            "files": [len(files), hashlib.blake2b(names, digest_size=8).hexdigest()],
            "column": files.text_column,
            "split": [files.split, files.val_fraction],
            "tokenizer": self._tokenizer.digest,
            "sharding": self._sharding,
            "seed": self._seed,
        }

    def contents(self, files: Iterable[int]) -> dict[str, str]:
        """Checksums of files. Each takes one small read, once."""
        return {str(file): self._files.digest(file) for file in sorted(files)}

    def accept(self, plan: Mapping[str, Any], contents: Mapping[str, str]) -> None:
        """Check that a state was made from these files. Files added after the checkpoint are ignored from here on."""
        files = self._all_files
        match plan.get("files"):
            case [int(count), _] if 0 < count < len(files):
                files = files.first(count)
        check_parts(self._parts(files), plan)
        for file, theirs in contents.items():
            if not file.isdecimal() or len(file) > 18 or int(file) >= len(files):
                raise StateError(f"the state refers to file {file[:80]!r}; there are {len(files):,}")
            ours = files.digest(int(file))
            if ours != theirs:
                raise PlanMismatchError(
                    f"{files.paths[int(file)]} is not the file that the checkpoint was made from: its checksum is "
                    f"{ours}, not {theirs}"
                )
        self._files = self._texts = files

    def __repr__(self) -> str:
        return repr(self._files)
