"""`Remote`: the settings by which data that lies elsewhere is read; and what reading it took."""

import os
from dataclasses import dataclass

from tokenfeed.errors import ArgumentError

__all__ = ["Remote", "RemoteStats"]


@dataclass(frozen=True, slots=True)
class Remote:
    """How data that lies elsewhere is read. The defaults suit windows in random order; `docs/remote.md` says more."""

    cache: str | os.PathLike[str] | None = None
    """A folder on a local disk where blocks are kept, for this and all later runs. Ranks of a node may share it."""
    cache_bytes: int = 256 << 30
    """How much may be kept there. What does not fit is not kept; data of other stores that nobody uses makes room."""
    block_bytes: int = 4096
    """What is fetched is whole blocks of this size. With an order of some locality, the size of its blocks."""
    memory_bytes: int = 64 << 20
    """Of blocks in memory, the latest. One call that needs more than a quarter of it makes it grow."""
    gap_bytes: int = 32 << 10
    """Two ranges with no more than this between them are fetched as one."""
    request_bytes: int = 8 << 20
    """The most that one request asks for."""

    def __post_init__(self) -> None:
        if self.block_bytes < 512 or self.block_bytes & (self.block_bytes - 1):
            raise ArgumentError(f"block_bytes is {self.block_bytes}; it must be a power of two, 512 or more")
        if min(self.memory_bytes, self.gap_bytes, self.cache_bytes) < 0 or self.request_bytes < self.block_bytes:
            raise ArgumentError(f"{self}: no size can be negative, and a request is at least a block")


@dataclass(frozen=True, slots=True)
class RemoteStats:
    """What reading from elsewhere took, since the store was opened."""

    requests: int = 0
    bytes_asked: int = 0
    """In blocks that somebody needed, and that were not in memory."""
    bytes_fetched: int = 0
    """That servers sent: what was asked for and not cached, and what lay between."""
    cache_hits: int = 0
    """Blocks that were read from the cache on disk."""
    cache_misses: int = 0
    cache_damaged: int = 0
    """Blocks on disk that were not what was written; they were fetched again."""
    waits: int = 0
    """How often a read had to wait for a server."""
    retries: int = 0
    """Requests that had to be made again; of all stores of this process together."""
    cache_is_full: bool = False
    """Whether blocks are no longer kept on disk, for lack of room or of a disk that can be written to."""
