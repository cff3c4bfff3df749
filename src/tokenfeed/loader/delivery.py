"""`Delivery`: what `Loader` and `stream` share. Batches are made ahead, and counted when the training loop has them.

`PlacedLoader` hands them on as arrays of a framework, on its devices: what `tokenfeed.torch` and `tokenfeed.jax` share.
"""

import os
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, Self, TypeVar

from tokenfeed.errors import ArgumentError
from tokenfeed.loader.feed import Feed
from tokenfeed.loader.launch import find_worker
from tokenfeed.loader.memory import Buffers
from tokenfeed.storage.remote import RemoteStats
from tokenfeed.store.batch import Batch, HostBatch
from tokenfeed.store.view import AS_DATASET
from tokenfeed.types import Bytes

__all__ = ["Delivery", "PlacedBatch", "PlacedLoader", "Stats", "check_loader"]

Placed = TypeVar("Placed", bound="PlacedBatch")

_process = os.getpid()
"""This process. Asking the system in every `next` would take 0.2 µs, and more where system calls are intercepted."""


def _note_process() -> None:
    global _process
    _process = os.getpid()


os.register_at_fork(after_in_child=_note_process)


@dataclass(frozen=True)
class Stats:
    """Counters of a loader since it was made."""

    batches: int
    samples: int
    """Rows that this rank has delivered."""
    bytes: int
    """Bytes of columns (or of text) read, including those of batches that wait in the queue."""
    wall_seconds: float
    """Time since the first batch was asked for."""
    wait_seconds: float
    """Time that the training loop spent in `next`."""
    read_seconds: float
    """Time spent making batches."""
    queued: int
    """Number of batches that are ready now."""
    remote: RemoteStats | None = None
    """Counters of the network, where data is remote."""
    items: int = 0
    """Items (tokens) of the rows delivered: of windows and packed rows their inputs, of documents all."""
    collate_seconds: float = 0.0
    """Part of `read_seconds` spent in the collate function."""
    encode_seconds: float | None = None
    """Time that threads spent tokenising; None where there is no text."""
    threads: int = 0
    """Threads that work ahead: they read, or tokenise where text is; 0 where nothing is made ahead."""
    prefetch: int = 0
    """How many batches may be made ahead."""
    delivered: int = 0
    """Samples of the run that all ranks have delivered, as far as this rank got; 0 for a stream."""

    @property
    def wait_fraction(self) -> float:
        return self.wait_seconds / self.wall_seconds if self.wall_seconds else 0.0

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is wrong with the settings, and what to change."""
        return (self.remote.warning,) if self.remote is not None and self.remote.warning else ()

    @property
    def headroom(self) -> float:
        """Supply over demand: how often the batches taken so far could have been made while the loop did other things.

        Below 1 the loop waits for data, whatever is made ahead. Infinite before anything was made.
        """
        makers = 1 if self.encode_seconds is not None else max(1, self.threads)  # one thread packs what others tokenise
        busy = max(self.read_seconds / makers, (self.encode_seconds or 0.0) / max(1, self.threads))
        return (self.wall_seconds - self.wait_seconds) / busy if busy else float("inf")


class _Closing(ABC):
    """What is true though it may have no length, and is closed at the end of a `with`."""

    @abstractmethod
    def close(self) -> None:
        """Stop working ahead, and forget what was fetched but not delivered. Iterating goes on where it was."""

    def __bool__(self) -> bool:
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Delivery(_Closing):
    """An iterator of batches with a state: that of the last batch delivered, whatever was made ahead of it.

    `fetch` and `deliver` are the two halves of `next`, for a stage that hands a batch on later.
    """

    rank: int
    world_size: int
    _threads = 0
    _prefetch = 0
    _heirs: tuple[Callable[[Stats], object], ...] = ()

    def __init__(self) -> None:
        self._generation = 0
        self._batches: Iterator[HostBatch] | None = None
        self._finalizer: Callable[[], object] | None = None
        self._process = self._home = _process
        self._num_batches = 0
        self._num_samples = 0
        self._num_items = 0
        self._waited: tuple[float, float | None] = 0.0, None
        """Seconds, and since when the training loop waits now; one value, for other threads look at it."""
        self._began: float | None = None

    @abstractmethod
    def _start(self) -> tuple[Iterator[HostBatch], Callable[[], object]]:
        """Batches after the last one delivered, and a call that stops making them."""

    @abstractmethod
    def _note(self, batch: HostBatch) -> None:
        """The batch has been delivered."""

    @abstractmethod
    def __len__(self) -> int:
        """Number of steps from the beginning to the end, where there is one that is known."""

    @property
    @abstractmethod
    def next_batch_size(self) -> int:
        """Rows of the next batch, if as many are left."""

    @abstractmethod
    def _use_buffers(self, buffers: Buffers) -> None: ...

    @abstractmethod
    def _work(self) -> dict[str, Any]:
        """Counters of whatever makes the batches, by their names in `Stats`."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> HostBatch:
        """The next batch. Where making it failed, the error is raised here; the next call tries again."""
        return self.deliver(self.fetch())

    def fetch(self) -> HostBatch:
        """The next batch, for a stage that hands it on later: it is not in the state before `deliver`."""
        began = time.perf_counter()
        waited = self._waited[0]
        self._waited = waited, began
        try:
            if self._batches is None or self._process != _process:
                self._batches = self._begin(began)
            batch = next(self._batches)
        except StopIteration:
            raise
        except Exception:
            self.close()
            raise
        finally:
            self._waited = waited + time.perf_counter() - began, None
        batch.generation = self._generation
        return batch

    def _begin(self, began: float) -> Iterator[HostBatch]:
        if self._process != _process:  # forked: there are no threads, and locks may be held for ever
            self.close()
            self._use_buffers(Buffers())
            self._process = _process
        if _process != self._home and (worker := find_worker()) is not None:
            raise ArgumentError(
                f"num_workers is {worker.num_workers}: each of these processes would deliver everything, and only "
                "it would know how far it got: a checkpoint would say 0 samples. Use num_workers=0; a loader reads "
                "ahead in threads of its own"
            )
        if self._began is None:
            self._began = began
        batches, end = self._start()
        self._finalizer = weakref.finalize(self, _end_in, _process, end)  # when this is collected, or at exit
        return batches

    def is_current(self, batch: HostBatch) -> bool:
        """Whether a batch that was fetched is still the one to deliver: this was not closed or sent elsewhere."""
        return batch.generation == self._generation

    def deliver(self, batch: HostBatch) -> HostBatch:
        """Count a batch as delivered to the training loop."""
        self._note(batch)
        num_rows = len(batch)
        length = batch.rows.layout.length
        self._num_batches += 1
        self._num_samples += num_rows
        self._num_items += batch.num_items if length is None else num_rows * length  # a call less: 0.1 µs of 1.2
        return batch

    def __getitem__(self, _: object) -> Any:
        """Refused, with the way out: a DataLoader, or a trainer that makes one, takes this for a dataset of samples."""
        raise ArgumentError(f"a loader delivers whole batches in an order of its own, and has no items. {AS_DATASET}")

    def is_ready(self) -> bool:
        """Whether `fetch` would return at once."""
        return isinstance(self._batches, Feed) and self._batches.queued > 0

    def use_memory(self, allocate: Callable[[int], Bytes]) -> None:
        """Put later batches into memory that `allocate` makes, such as pinned memory."""
        self.close()
        self._use_buffers(Buffers(allocate))

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """The checkpoint after the last batch delivered."""

    @abstractmethod
    def load_state_dict(self, state: Any) -> None:
        """Go on after a checkpoint."""

    def close(self) -> None:
        finalizer, self._finalizer, self._batches = self._finalizer, None, None
        self._generation += 1
        if finalizer is not None:
            finalizer()

    def leave_stats_to(self, heir: Callable[[Stats], object]) -> None:
        """Call `heir` with the last counters when this is collected, in any thread. A finalizer comes too late."""
        self._heirs += (heir,)

    def __del__(self) -> None:
        for heir in self._heirs:
            heir(self.stats())

    def stats(self) -> Stats:
        """Counters since this was made."""
        now = time.perf_counter()
        waited, since = self._waited
        return Stats(
            batches=self._num_batches,
            samples=self._num_samples,
            wall_seconds=0.0 if self._began is None else max(0.0, now - self._began),
            wait_seconds=waited if since is None else waited + max(0.0, now - since),
            queued=self._batches.queued if isinstance(self._batches, Feed) else 0,
            items=self._num_items,
            threads=self._threads if self._prefetch else 0,
            prefetch=self._prefetch,
            **self._work(),
        )


def _end_in(process: int, end: Callable[[], object]) -> None:
    """End the making of batches, in the process that makes them."""
    if process == _process:
        end()


class PlacedBatch(Batch):
    """A batch whose inputs, targets, mask and columns are arrays of a framework. The rest stays on the host."""

    def __init__(self, host: HostBatch) -> None:
        self._take_rows_of(host)
        self._host = host
        self._columns: dict[str, Any] = {}

    @property
    def host(self) -> HostBatch:
        return self._host

    @abstractmethod
    def _place_column(self, name: str) -> Any:
        """A column of the host batch as an array of the framework."""

    def column(self, name: str) -> Any:
        """The rows of a column that was read with the batch."""
        if name not in self._columns:
            if name not in self.rows.layout.columns:
                raise ArgumentError(f"column {name!r} was not read with the batch; name it when you make the view")
            self._columns[name] = self._place_column(name)
        return self._columns[name]


class PlacedLoader(_Closing, Generic[Placed]):
    """An iterator of placed batches. State, rank and statistics are those of the loader behind it."""

    def __init__(self, loader: Delivery) -> None:
        loader.close()  # what another one has fetched and not delivered comes again here
        self.loader = loader

    @abstractmethod
    def __next__(self) -> Placed: ...

    def __iter__(self) -> Self:
        iter(self.loader)
        return self

    def __len__(self) -> int:
        return len(self.loader)

    def state_dict(self) -> dict[str, Any]:
        return self.loader.state_dict()

    def load_state_dict(self, state: Any, **options: Any) -> None:
        """Go on after a checkpoint. `options` are those of the loader behind it, such as `rows` of a `Loader`."""
        self.loader.load_state_dict(state, **options)

    def stats(self) -> Stats:
        """Counters of the loader. Batches on their way to the device are not among those delivered."""
        return self.loader.stats()

    def close(self) -> None:
        self.loader.close()


def check_loader(loader: Any, taker: str) -> Delivery:
    """The loader, if it is one that `taker` can work with."""
    if isinstance(loader, Delivery):
        return loader
    how = "give it `.loader` of this" if isinstance(loader, PlacedLoader) else "make one: Loader(view, batch_size=32)"
    raise ArgumentError(f"{taker} takes a Loader or a stream, not {type(loader).__name__}; {how}")
