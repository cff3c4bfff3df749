"""`Remote`: settings for reading remote data; `RemoteStats`: what reading it took."""

import os
from dataclasses import dataclass

from tokenfeed.errors import ArgumentError

__all__ = ["Remote", "RemoteStats"]


@dataclass(frozen=True, slots=True)
class Remote:
    """Settings for reading remote data. The defaults suit windows in random order; see `docs/remote.md`."""

    cache: str | os.PathLike[str] | None = None
    """Folder on a local disk where blocks are kept, for this and all later runs. Ranks of a node may share it."""
    cache_bytes: int = 256 << 30
    """Limit of the folder. Data of other stores that nobody uses makes room; blocks that do not fit are not kept."""
    block_bytes: int = 4096
    """Size of a block; only whole blocks are fetched. For an order with locality, use the size of its blocks."""
    memory_bytes: int = 64 << 20
    """Memory for the latest blocks. It grows if one call needs more than a quarter of it."""
    gap_bytes: int = 32 << 10
    """Largest gap between two ranges that are fetched as one."""
    request_bytes: int = 8 << 20
    """Limit of one request."""

    def __post_init__(self) -> None:
        if self.block_bytes < 512 or self.block_bytes & (self.block_bytes - 1):
            raise ArgumentError(f"block_bytes is {self.block_bytes}; it must be a power of two, 512 or more")
        if min(self.memory_bytes, self.gap_bytes, self.cache_bytes) < 0 or self.request_bytes < self.block_bytes:
            raise ArgumentError(f"{self}: no size can be negative, and a request is at least a block")


@dataclass(frozen=True, slots=True)
class RemoteStats:
    """Counts of remote reading since the store was opened."""

    requests: int = 0
    bytes_asked: int = 0
    """Bytes of the blocks that were needed and not in memory."""
    bytes_fetched: int = 0
    """Bytes that servers sent: the blocks needed and not cached, and the gaps between them."""
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
