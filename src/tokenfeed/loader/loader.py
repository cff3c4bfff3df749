"""`Loader`: the samples of a plan as batches, read ahead by a background thread, with a state that is one number."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from tokenfeed.errors import ArgumentError
from tokenfeed.loader.batch import LoadedBatch
from tokenfeed.loader.delivery import Delivery
from tokenfeed.loader.feed import Buffers, Feed
from tokenfeed.loader.launch import find_rank
from tokenfeed.loader.masking import find_masks
from tokenfeed.loader.work import Work, announced, make_jobs
from tokenfeed.plan.locality import Shuffle
from tokenfeed.plan.mixing import Mixture
from tokenfeed.plan.plan import Plan
from tokenfeed.plan.skips import Skip
from tokenfeed.plan.steps import BatchSizes
from tokenfeed.runs.file import RunFile
from tokenfeed.storage.remote import RemoteStats
from tokenfeed.store.batch import Batch
from tokenfeed.store.view import View

__all__ = ["Loader"]

# Waking a thread that waits costs up to 0.1 ms on virtual machines, as much as reading a batch of 32 × 2,048 tokens.
# With 16 batches by one call (half of what is read ahead) that is lost in the noise; with 4 it is a quarter.
_PREFETCH = 32
_PREFETCH_BYTES = 64 << 20


class Loader(Delivery):
    """Endless batches over a view, in a globally shuffled order that every epoch has anew.

    Step after step, rank r of W takes the samples K + r, K + W + r, … of the run, and K grows by W times the batch
    size. Nothing else is state: a checkpoint fits any world size, any batch size and any `prefetch`.

    A second `for` loop goes on where the first one stopped. `epochs` makes a loader finite: every sample exactly once
    per epoch over all ranks, and equally many steps on every rank, of which the last may have short or empty batches;
    a `for` loop over a finite loader that has ended begins again.
    """

    def __init__(
        self,
        view: View | Mixture,
        batch_size: int | Mapping[int, int],
        *,
        seed: int = 0,
        shuffle: Shuffle = True,
        epochs: int | None = None,
        skips: Sequence[Skip] = (),
        prefetch: int | None = None,
        threads: int = 2,
        rank: int | None = None,
        world_size: int | None = None,
        collate: Callable[[Batch], Any] | None = None,
        run: str | Path | None = None,
    ) -> None:
        """`batch_size` is that of one rank, or a ramp {samples delivered: batch size}. `prefetch` batches are read
        ahead: 0 for none, and no thread; unless given, 32, or what fits 64 MiB. `rank` and `world_size` come from the
        launcher unless given. `threads` read, without the interpreter lock, whatever their number in the same order.
        A `Locality` as `shuffle` mixes less, where reading single samples from all over the data is too slow.

        `collate` is called with every batch, in the background; what it returns is `batch.data`. `run` is a file in
        which rank 0 notes what was run from where, for `Run`.
        """
        super().__init__()
        if (prefetch is not None and prefetch < 0) or threads < 1:
            raise ArgumentError(f"prefetch is {prefetch}, threads is {threads}; they must be at least 0 and 1")
        if epochs is not None and epochs < 1:
            raise ArgumentError(f"epochs is {epochs}; it must be at least 1, or None for a loader without end")
        self.rank, self.world_size = find_rank(rank, world_size)
        self.batch_sizes = BatchSizes(batch_size)
        self.plan = Plan.of(view, seed=seed, shuffle=shuffle, skips=skips)
        self._stop = self.plan.end if epochs is None else self.plan.count(epochs)
        mixture = Mixture.of(view)
        joined = mixture.joined
        self._reader = joined.reader
        self._batch_bytes = self.batch_sizes.at(0) * self._reader.bytes_to_fetch(max(1, joined.sample_bytes))
        self._prefetch = self._choose_prefetch() if prefetch is None else prefetch
        self._threads = threads
        masks = find_masks(mixture, skips)
        self._work = Work(self.plan, joined, self.rank, self.world_size, self._stop, Buffers(), collate, masks)
        self._run = None if run is None or self.rank != 0 else RunFile(run)
        self._stores = {name: each.paths for name, each in mixture.views.items()}
        self._next = 0

    def _choose_prefetch(self) -> int:
        return min(_PREFETCH, max(2, _PREFETCH_BYTES // self._batch_bytes))

    def __iter__(self) -> Self:
        if self._stop is not None and self._next >= self._stop:
            self.close()
            self._next = 0
        return self

    def _note(self, batch: LoadedBatch) -> None:
        self._next = batch.num_delivered

    def _use_buffers(self, buffers: Buffers) -> None:
        self._work.use_buffers(buffers)

    @property
    def _work_done(self) -> tuple[int, float]:
        return self._work.num_bytes, self._work.seconds

    @property
    def _collate_seconds(self) -> float:
        return self._work.collate_seconds

    @property
    def _remote(self) -> RemoteStats | None:
        return self._reader.stats()

    def _start(self) -> tuple[Iterator[LoadedBatch], Callable[[], object]]:
        if self._run is not None:
            where = self._stores
            self._run.begin(self.plan, self._next, self.world_size, self.batch_sizes, self._stop, stores=where)
        # Several steps are read by one call: handing over batches one by one would cost more than reading them. Not so
        # where they come from a server, and then the first must not wait for those behind it.
        per_job = max(1, self._prefetch // 2) if self._reader.remote is None else 1
        jobs = make_jobs(self._next, self._stop, self.batch_sizes, self.world_size, per_job)
        if self._prefetch == 0:
            work = self._work
            return (batch for job in jobs for batch in work(job)), jobs.close
        coming = jobs if self._reader.remote is None else announced(jobs, self._work.announce, self._announced)
        feed = Feed(coming, self._work, depth=self._prefetch, per_job=per_job, threads=self._threads)
        return feed, feed.close

    @property
    def _announced(self) -> int:
        """How many steps ahead data is asked for that lies elsewhere: what a quarter of its memory holds."""
        assert self._reader.remote is not None
        return max(1, min(self._prefetch, self._reader.remote.memory_bytes // 4 // self._batch_bytes))

    def state_dict(self) -> dict[str, Any]:
        """The checkpoint after the last batch delivered; the same on every rank."""
        return self.plan.state(self._next)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on behind a checkpoint, made on any number of ranks with any batch size."""
        num_delivered = self.plan.accept(state)
        self.close()
        self._next = num_delivered

    def __repr__(self) -> str:
        return f"Loader({self.plan}, batch_size={self.batch_sizes}, rank {self.rank} of {self.world_size})"

