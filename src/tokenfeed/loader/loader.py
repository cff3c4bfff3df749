"""`Loader`: batches of a run over stored data."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

from tokenfeed.errors import ArgumentError
from tokenfeed.loader.delivery import AS_DATASET, Delivery
from tokenfeed.loader.feed import Feed
from tokenfeed.loader.launch import check_whole, find_rank
from tokenfeed.loader.memory import Buffers
from tokenfeed.loader.reading import StepReader, Steps, announced, check_changes, find_eras, make_steps
from tokenfeed.plan.amending import Grown, NewSource, Weights
from tokenfeed.plan.mixing import Limits, Mixture
from tokenfeed.plan.permutation import Locality, Shuffle
from tokenfeed.plan.plan import Plan
from tokenfeed.plan.skips import Skip
from tokenfeed.plan.steps import BatchSizes
from tokenfeed.runs.file import RunFile
from tokenfeed.store.batch import HostBatch
from tokenfeed.store.store import Store
from tokenfeed.store.view import View

__all__ = ["Loader"]

# Waking a thread that waits costs up to 0.1 ms on virtual machines, as much as reading a batch of 32 × 2,048 tokens.
# With 16 batches by one call (half of what is read ahead) that is lost in the noise; with 4 it is a quarter.
_PREFETCH = 32
_PREFETCH_BYTES = 64 << 20


class Loader(Delivery):
    """Endless batches over a view, in a globally shuffled order that differs in every epoch.

    Step after step, rank r of W takes the samples K + r, K + W + r, … of the run, and K grows by W times the batch
    size. Nothing else is state: a checkpoint fits any world size, any batch size and any `prefetch`.

    A second `for` loop goes on where the first one stopped. `epochs` makes a loader finite: every sample exactly once
    per epoch over all ranks, and equally many steps on every rank, of which the last may have short or empty batches.
    `len(loader)` is then its number of steps, and a `for` loop over a finite loader that has ended begins again.
    """

    def __init__(
        self,
        view: View | Mixture | Plan,
        batch_size: int | Mapping[int, int],
        *,
        seed: int = 0,
        shuffle: Shuffle = True,
        epochs: int | None = None,
        skips: Skip | Sequence[Skip] = (),
        prefetch: int | None = None,
        threads: int = 2,
        rank: int | None = None,
        world_size: int | None = None,
        collate: Callable[[HostBatch], Any] | None = None,
        run: str | Path | None = None,
        accumulate: int = 1,
    ) -> None:
        """`view` may be a plan, which has its own seed, shuffle and skips. `batch_size` is that of one rank, or a ramp
        {samples delivered: batch size}. `prefetch` batches are read ahead: 0 for none, and no thread; by default 32, or
        what fits 64 MiB. `rank` and `world_size` come from the launcher unless given. `threads` read without the
        interpreter lock; their number does not change the order. A `Locality` as `shuffle` mixes less, where reading
        single samples from all over the data is too slow.

        `collate` is called with every batch, in the background; its result is `batch.data`. `run` is a file in which
        rank 0 notes what was run from where, for `Run`; `accumulate` batches are one training step there.
        """
        self._arguments = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        super().__init__()
        _check_view(view)
        check_whole("prefetch", 0 if prefetch is None else prefetch)
        check_whole("threads", threads, least=1)
        if epochs is not None:
            check_whole("epochs", epochs, least=1)
        check_whole("accumulate", accumulate, least=1)
        self.batch_sizes = BatchSizes(batch_size)
        if accumulate > 1 and len(self.batch_sizes.to_json()) > 1:
            raise ArgumentError("batch_size is a ramp, and accumulate is more than 1: only one of them may be")
        if isinstance(view, Plan) and (seed not in (0, view.seed) or shuffle not in (True, view.shuffle) or skips):
            raise ArgumentError(f"{view} has its seed, shuffle and skips; give Plan.of(…) what they should be")
        self._epochs = epochs
        self._asked_prefetch = prefetch
        self._threads = threads
        self._collate = collate
        self._run_path = run
        self._run: RunFile | None = None
        self._accumulate = accumulate
        self._next = 0
        self._step: int | None = None
        self._buffers = Buffers()
        self._place(*find_rank(rank, world_size))
        self._use(view if isinstance(view, Plan) else Plan.of(view, seed=seed, shuffle=shuffle, skips=skips))

    def _place(self, rank: int, world_size: int) -> None:
        self.rank, self.world_size = rank, world_size
        if self._run_path is None or rank != 0:
            self._run = None
        elif self._run is None:
            self._run = RunFile(self._run_path)

    def _use(self, plan: Plan) -> None:
        """Read what this plan says from the next batch on."""
        eras = find_eras(plan)
        stop = plan.end if self._epochs is None else plan.count(self._epochs)
        self.close()
        self.plan, self._stop = plan, stop
        self._changes = [era.start for era in eras[1:]]
        view = eras[-1].view
        self._reader = view.reader
        self._batch_bytes = self.batch_sizes.at(0) * self._reader.bytes_to_fetch(max(1, view.sample_bytes))
        fitting = min(_PREFETCH, max(2, _PREFETCH_BYTES // self._batch_bytes))
        self._prefetch = fitting if self._asked_prefetch is None else self._asked_prefetch
        self._steps = StepReader(
            plan,
            eras,
            rank=self.rank,
            world_size=self.world_size,
            stop=stop,
            collate=self._collate,
            block_bytes=self._prepare_blocks(plan.shuffle, eras[-1].views),
        )
        self._steps.use_buffers(self._buffers)

    def _prepare_blocks(self, shuffle: Shuffle, views: Sequence[View]) -> int:
        """Bytes of remote data that are fetched at once because the order has need of neighbours; 0 where it has none.

        An eighth of a block of the order: the two do not begin at the same places. What is fetched is kept in memory
        until it was used, for 3 · `tile` blocks, and those of the samples that are read ahead. Where several ranks take
        the samples of a block, and no cache keeps what one of them fetches for another, each fetches its own samples.
        """
        remote = self._reader.remote
        if remote is None or not isinstance(shuffle, Locality) or (self.world_size > 1 and remote.cache is None):
            return 0
        ahead = (self._prefetch + 2) * self.batch_sizes.at(0)
        blocks = [shuffle.block * view.spec.samples_per_group * view.stored_bytes for view in views]
        kept = (3 * shuffle.tile * block + ahead * view.stored_bytes for block, view in zip(blocks, views, strict=True))
        whole = (len(view) * view.stored_bytes for view in views)
        self._reader.keep(sum(map(min, kept, whole)) * 9 // 8)
        return min(remote.request_bytes, 1 << max(0, min(blocks).bit_length() - 4))

    def amend(
        self,
        at: int | None = None,
        *,
        weights: Weights | None = None,
        sources: Mapping[str, NewSource] | None = None,
        grown: Grown | Mapping[str, Grown] | None = None,
        skip: Skip | Sequence[Skip] | None = None,
        length: int | None = None,
        max_epochs: Limits = None,
    ) -> None:
        """Change the run from sample `at` on, by default from the next batch on: as `Plan.amend`.

        What was read ahead is dropped, and nothing of the run is lost or repeated. Every rank must make the same call
        after the same batch; where one does not, the states of the ranks differ from then on.
        """
        if at is not None and at < self._next:
            raise ArgumentError(
                f"at is {at:,}, and {self._next:,} samples were delivered: what is past stays as it is. Give at >= "
                f"{self._next:,}, or go back to a checkpoint at or before {at:,} first"
            )
        amended = self.plan.amend(
            self._next if at is None else at,
            weights=weights,
            sources=sources,
            grown=grown,
            skip=skip,
            length=length,
            max_epochs=max_epochs,
        )
        self._use(amended)

    def resize(
        self,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        batch_size: int | Mapping[int, int] | None = None,
        same_global_batch: bool = False,
    ) -> None:
        """Go on as another rank of another number of ranks, from the next batch on; as the launcher says, or as given.

        The batch size of a rank stays, or becomes `batch_size`; or, with `same_global_batch`, that which keeps the
        number of rows of all ranks together. Every rank must make the call after the same batch.
        """
        rank, world_size = find_rank(rank, world_size)
        sizes = self.batch_sizes if batch_size is None else BatchSizes(batch_size)
        if same_global_batch:
            sizes = self.batch_sizes.spread(self.world_size, world_size)
        self.close()
        self.batch_sizes = sizes
        self._place(rank, world_size)
        self._use(self.plan)

    def __iter__(self) -> Self:
        if self._stop is not None and self._next >= self._stop:
            self.close()
            self._next = 0
        return self

    def __len__(self) -> int:
        if self._stop is None:
            raise TypeError(
                "this loader has no end, and so no length: epochs=1 makes it finite, and steps_per_epoch is that of an "
                f"epoch. {AS_DATASET}"
            )
        return self.batch_sizes.steps_between(0, self._stop, self.world_size)

    @property
    def steps_per_epoch(self) -> int:
        """Number of steps in the first epoch, the last of which may take the first samples of the next one."""
        return self.batch_sizes.steps_between(0, self.plan.count(1), self.world_size)

    @property
    def next_batch_size(self) -> int:
        return self.batch_sizes.at(self._next)

    def _note(self, batch: HostBatch) -> None:
        self._next = batch.num_delivered
        if self._run is not None:
            self._run.deliver(self._next)

    def _use_buffers(self, buffers: Buffers) -> None:
        self._buffers = buffers
        self._steps.use_buffers(buffers)

    def _work(self) -> dict[str, Any]:
        return {**self._steps.work, "remote": self._reader.stats(), "delivered": self._next}

    def _start(self) -> tuple[Iterator[HostBatch], Callable[[], object]]:
        check_changes(self._next, self._changes, self.batch_sizes, self.world_size)
        if self._run is not None:
            self._run.begin(
                {"stores": self.plan.paths},
                self._next,
                self.world_size,
                self.batch_sizes,
                stop=self._stop,
                plan=self.plan,
                step=self._step,
                accumulate=self._accumulate,
            )
            self._step = None
        batches, end = self._read()
        return batches, end if self._run is None else partial(_note_and_end, self._run, end)

    def _read(self) -> tuple[Iterator[HostBatch], Callable[[], object]]:
        # Several steps are read by one call: handing over batches one by one would cost more than reading them. Not so
        # for remote data, where the first must not wait for those after it.
        together = max(1, self._prefetch // 2) if self._reader.remote is None else 1
        coming = make_steps(self._next, self._stop, self.batch_sizes, self.world_size, together, self._changes)
        if self._prefetch == 0:
            read = self._steps
            return (batch for steps in coming for batch in read(steps)), coming.close
        ahead: Iterator[Steps] = coming
        if self._reader.remote is not None:  # what a quarter of its memory holds is asked for in advance
            most = self._reader.memory_bytes // 4 // self._batch_bytes
            ahead = announced(coming, self._steps.announce, max(1, min(self._prefetch, most)))
        feed = Feed(ahead, self._steps, depth=self._prefetch, per_job=together, threads=self._threads)
        return feed, feed.close

    def state_dict(self) -> dict[str, Any]:
        """The checkpoint after the last batch delivered; the same on every rank."""
        if self._run is not None:
            self._run.note()
        return self.plan.state(self._next)

    def load_state_dict(self, state: Any, *, step: int | None = None) -> None:
        """Go on after a checkpoint, made on any number of ranks with any batch size.

        The states of all ranks in a list are compared first. `step` is the training step that comes next, for the run
        file; one that was kept up to here knows it.
        """
        num_delivered = self.plan.accept(state)
        self.close()
        self._next, self._step = num_delivered, step

    def __reduce__(self) -> Any:
        now = {"view": self.plan, "batch_size": self.batch_sizes.stages}
        plain = {"seed": 0, "shuffle": True, "skips": (), "rank": self.rank, "world_size": self.world_size}
        return _open_again, ({**self._arguments, **plain, **now}, self.state_dict())

    def __repr__(self) -> str:
        end = "" if self._stop is None else f" of {self._stop:,}"
        place = f"rank {self.rank} of {self.world_size}, {self._next:,}{end} samples delivered"
        return f"Loader({self.plan}, batch_size={self.batch_sizes}, {place})"


def _note_and_end(run: RunFile, end: Callable[[], object]) -> None:
    """At the end of a loader or of the process; refers to no loader, which could not be collected otherwise."""
    try:
        run.note()
    finally:
        end()


def _open_again(arguments: dict[str, Any], state: dict[str, Any]) -> Loader:
    loader = Loader(**arguments)
    loader.load_state_dict(state)
    loader._home = -1
    return loader


def _check_view(view: Any) -> None:
    if isinstance(view, View | Mixture | Plan):
        return
    if isinstance(view, str | Path):
        raise ArgumentError(
            f"a Loader takes a view, not a path: Loader(tokenfeed.open({str(view)!r}).windows(2048), 32)"
        )
    if isinstance(view, Store):
        raise ArgumentError(
            "a Loader takes a view of a store, which says what one sample is: store.windows(2048), store.documents() "
            "or store.packed(2048)"
        )
    if isinstance(view, Mapping | list | tuple):
        raise ArgumentError(
            "a Loader takes one view, or a mixture of several: "
            'Loader(tokenfeed.mix({"web": (view, 0.7), "code": (other, 0.3)}), 32)'
        )
    raise ArgumentError(f"a Loader takes a view such as store.windows(2048), or tokenfeed.mix(…), not {view!r}")
