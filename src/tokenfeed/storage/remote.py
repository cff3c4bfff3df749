"""`Remote`: settings for reading remote data; `RemoteStats`: what reading it took."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from tokenfeed.errors import ArgumentError

__all__ = ["MEMORY_BYTES", "Remote", "RemoteStats"]

MEMORY_BYTES = 64 << 20
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}")
_VALUE = re.compile(r"[\t -~]{0,16384}")


@dataclass(frozen=True, slots=True)
class Remote:
    """Settings for reading remote data. The defaults suit windows in random order; see `docs/remote.md`."""

    cache: str | os.PathLike[str] | None = None
    """Folder on a local disk where blocks are kept, for this and all later runs. Ranks of a node may share it."""
    cache_bytes: int = 256 << 30
    """Limit of the folder. Data of other stores that nobody uses makes room; blocks that do not fit are not kept."""
    block_bytes: int | None = None
    """Size of the blocks that are fetched whole. By default only what is needed is fetched, within an eighth of a row;
    an order with locality fetches eighths of its blocks."""
    memory_bytes: int | None = None
    """Memory for what was fetched latest. The default is 64 MiB, or as much as an order with locality needs if there is
    no `cache`. It grows if one call needs more than a quarter of it."""
    gap_bytes: int | None = None
    """Largest gap between two ranges that are fetched as one; by default about a row, and at most 4 KiB."""
    request_bytes: int = 8 << 20
    """Limit of one request."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Headers of every request, such as `{"Authorization": "Bearer …"}`. They are shown and written nowhere."""
    ca: str | os.PathLike[str] | None = None
    """File with the certificate of a private authority (PEM), to trust it as well."""

    def __post_init__(self) -> None:
        block, memory, gap = self.block_bytes or 512, self.memory_bytes or 0, self.gap_bytes or 0
        if self.block_bytes is not None and (self.block_bytes < 512 or block & (block - 1)):
            raise ArgumentError(f"block_bytes is {self.block_bytes}; it must be a power of two, 512 or more")
        if min(memory, gap, self.cache_bytes) < 0 or self.request_bytes < block:
            raise ArgumentError(f"{self}: no size can be negative, and a request is at least a block")
        for name, value in self.headers.items():
            is_text = isinstance(name, str) and isinstance(value, str)
            if not is_text or not _HEADER.fullmatch(name) or not _VALUE.fullmatch(value):
                raise ArgumentError(
                    f"headers: {name!r} is not the name of a header, or its value is not one line of plain text"
                )


@dataclass(frozen=True, slots=True)
class RemoteStats:
    """Counts of remote reading since the store was opened."""

    requests: int = 0
    bytes_asked: int = 0
    """Bytes that were needed and not in memory, in slots of 512 bytes or less."""
    bytes_fetched: int = 0
    """Bytes that servers sent: the blocks needed and not cached, and the gaps between them."""
    bytes_used: int = 0
    """Bytes that were read from memory: rows and spans."""
    bytes_held: int = 0
    """Bytes that are in memory now, and may still be used."""
    cache_hits: int = 0
    """Blocks read from the cache on disk."""
    cache_misses: int = 0
    cache_damaged: int = 0
    """Blocks on disk that were damaged, and fetched again."""
    waits: int = 0
    """Reads that had to wait for a server."""
    retries: int = 0
    """Requests that were tried again, for all stores of this process together."""
    cache_is_full: bool = False
    """Whether blocks are no longer kept on disk, because it is full or cannot be written to."""

    @property
    def warning(self) -> str:
        """What to change, where more than twice the bytes used were fetched, less those in memory; else empty."""
        if self.bytes_fetched - self.bytes_held <= 2 * self.bytes_used:
            return ""
        times = self.bytes_fetched / max(1, self.bytes_used)
        return (
            f"{times:.1f} bytes were fetched for each byte used: they were not needed, or had left memory before they "
            "were. Leave block_bytes and memory_bytes out of Remote(…), so that they follow from the data; or give it "
            "smaller block_bytes, more memory_bytes, or a cache"
        )
