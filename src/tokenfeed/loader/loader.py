"""`Loader`: batches of a run over stored data."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any, Never, Self, Unpack

from tokenfeed.errors import ArgumentError, whole
from tokenfeed.loader.collate import SIDES
from tokenfeed.loader.delivery import Delivery
from tokenfeed.loader.feed import Feed
from tokenfeed.loader.launch import find_rank
from tokenfeed.loader.memory import Buffers
from tokenfeed.loader.reading import Joined, StepReader, Steps, announced, deal_steps, make_steps
from tokenfeed.loader.reopening import Rows, open_rows
from tokenfeed.plan.amending import Changes
from tokenfeed.plan.dealing import Balance, StepRule, TokenCounts
from tokenfeed.plan.masks import Documents
from tokenfeed.plan.mixing import Mixture, Sources
from tokenfeed.plan.orders import Local
from tokenfeed.plan.plan import Plan
from tokenfeed.plan.source import Shuffle
from tokenfeed.plan.steps import count_steps
from tokenfeed.runs.file import RunFile
from tokenfeed.storage.address import local_file
from tokenfeed.store.batch import HostBatch
from tokenfeed.store.store import Store
from tokenfeed.store.view import AS_DATASET, View

__all__ = ["Loader"]

# Waking a thread that waits costs up to 0.1 ms on virtual machines, as much as reading a batch of 32 × 2,048 tokens.
# With 16 batches by one call (half of what is read ahead) that is lost in the noise; with 4 it is a quarter.
_PREFETCH = 32
_PREFETCH_BYTES = 64 << 20
_MOST_COUNTED = 1 << 24
"""Samples whose lengths are all looked up to count the steps of a token budget: 3 s."""

_OF_TORCH = {
    "num_workers": "a Loader has no num_workers: it reads ahead in threads of this process; threads=4 gives it more",
    "drop_last": "a Loader has no drop_last: it has no end, and every batch is full. With epochs=1 it has one, each "
    "sample comes exactly once, and the last step alone may have short batches: stop before it, or train on them",
}
"""Options of torch's DataLoader that are not ours, and what to do instead."""


class Loader(Delivery):
    """Endless batches over a view, in a globally shuffled order that differs in every epoch.

    Step after step, rank r of W takes the samples K + r, K + W + r, … of the run, and K grows by W times the batch
    size. Nothing else is state: a checkpoint fits any world size, any batch size and any `prefetch`.

    With `tokens`, a training step takes the next samples as far as `tokens` for each rank reach, at least one; with
    `balance`, ranks get equal work. Both are computed on every rank from lengths in a table, without a message.

    A second `for` loop goes on where the first one stopped. `epochs` makes a loader finite: every sample exactly once
    per epoch over all ranks, and equally many steps on every rank, of which the last may have short or empty batches.
    `len(loader)` is then its number of steps, and a `for` loop over a finite loader that has ended begins again.
    """

    def __init__(
        self,
        view: View | Mixture | Plan,
        batch_size: int | None = None,
        *,
        tokens: int | None = None,
        balance: Balance = None,
        too_long: str = "error",
        seed: int = 0,
        shuffle: Shuffle = True,
        epochs: int | None = None,
        mask: Documents | Mapping[str, Documents] | None = None,
        prefetch: int | None = None,
        threads: int = 2,
        rank: int | None = None,
        world_size: int | None = None,
        collate: Callable[[HostBatch], Any] | None = None,
        run: str | Path | None = None,
        accumulate: int = 1,
        **others: Never,
    ) -> None:
        """`view` may be a plan, which has its own seed, shuffle and mask. `batch_size` is that of one rank. `prefetch`
        batches are read ahead: 0 for none, and no thread; by default 32, or what fits 64 MiB. `rank` and `world_size`
        come from the launcher unless given. `threads` read without the interpreter lock; their number does not change
        the order. `shuffle` is False for the order of the data; `Local(block, tile)`, which mixes less, where reading
        single samples from all over the data is too slow; or `Listed(path)`, an order of your own. Nothing is learned
        in the documents of `mask`: `Plan.amend` tells how they are given.

        `collate` is called with every batch, in the background; its result is `batch.data`. `run` is a file in which
        rank 0 notes what was run from where, for `Run`; `accumulate` batches are one training step there.

        `tokens`, in place of `batch_size`, is the budget of one rank and batch. A training step takes samples as long
        as their tokens (inputs without padding, as in `batch.flat`) sum to `tokens` · world_size · `accumulate`. That
        sum is a cap; one rank may have more than `tokens`, for samples are not cut. A sample of more than `tokens` is
        an error, or with `too_long="own"` alone in its batch. A batch may be empty.

        `balance` makes ranks and batches of a training step equal: True in tokens, `Cost(a, b)` in a·L + b·L². With
        `batch_size` every batch keeps its number of rows. Otherwise samples go to the ranks in turn; with `tokens`,
        each to the one with the fewest tokens so far.

        With `tokens` or `balance`, `accumulate` batches are dealt as one training step, and the state advances with the
        last of them: a step that was not finished comes again, as its gradients are lost with the process.
        """
        self._arguments = {
            name: value for name, value in locals().items() if name not in ("self", "others", "__class__")
        }
        super().__init__()
        for name in others:
            raise ArgumentError(_OF_TORCH[name]) if name in _OF_TORCH else TypeError(f"a Loader takes no {name}=")
        _check_view(view)
        whole("prefetch", 0 if prefetch is None else prefetch)
        whole("threads", threads, 1)
        whole("epochs", 1 if epochs is None else epochs, 1)
        whole("accumulate", accumulate, 1)
        self.rule = StepRule.of(batch_size, tokens, accumulate, balance, too_long)
        if isinstance(view, Plan) and (
            seed not in (0, view.seed) or shuffle not in (True, view.shuffle) or mask is not None
        ):
            raise ArgumentError(f"{view} has its seed, shuffle and mask; give Plan.of(…) what they should be")
        self._epochs = epochs
        self._asked_prefetch = prefetch
        self._threads = threads
        self._collate = collate
        self._run_path = None if run is None else local_file(run)
        self._run: RunFile | None = None
        self._next = 0
        self._done = 0
        """Batches delivered of the training step that begins there."""
        self._since = 0
        """Samples delivered when training steps of these batches began."""
        self._step: int | None = None
        self._buffers = Buffers()
        self._known: tuple[Sources | None, Joined | None] = None, None
        """Views that were read up to now, joined."""
        self._place(*find_rank(rank, world_size))
        plan = view if isinstance(view, Plan) else Plan.of(view, seed=seed, shuffle=shuffle, mask=mask)
        self._given_plan = plan.program
        """What the program gave: a state adds its changes to it."""
        self._use(plan)

    def _place(self, rank: int, world_size: int) -> None:
        self.rank, self.world_size = rank, world_size
        if self._run_path is None or rank != 0:
            self._run = None
        elif self._run is None:
            self._run = RunFile(self._run_path)

    def _use(self, plan: Plan) -> None:
        """Read what this plan says from the next batch on. Where that is refused, nothing has changed."""
        given, joined = self._known
        if joined is None or plan.given is not given or plan.masks:
            joined = Joined.of(plan)
            self._check_pairs(plan.views)
        stop = plan.end if self._epochs is None else plan.count(self._epochs)
        counts = TokenCounts(plan) if self.rule.is_dealt else None
        self.close()
        self.plan, self._stop, self._known, self._counts = plan, stop, (plan.given, joined), counts
        self._counted: dict[int, int] = {}
        """Training steps of so many samples, where it took a walk to count them."""
        view = joined.view
        self._reader = view.reader
        self._batch_rows = self.rule.size
        if self.rule.by_tokens:
            self._batch_rows = -(-self._batch_rows // max(1, view.width))
        self._batch_bytes = self._batch_rows * self._reader.bytes_to_fetch(max(1, view.sample_bytes))
        fitting = min(_PREFETCH, max(2, _PREFETCH_BYTES // self._batch_bytes))
        self._prefetch = fitting if self._asked_prefetch is None else self._asked_prefetch
        block_bytes = self._prepare_blocks(plan.shuffle, plan.views)
        self._steps = StepReader(plan, joined, collate=self._collate, block_bytes=block_bytes)
        self._steps.use_buffers(self._buffers)

    def _check_pairs(self, views: Sequence[View]) -> None:
        """Refuse to learn both sides of preference pairs as if they were text."""
        for view in views if self._collate is None else ():
            if SIDES in view.layout.tables and SIDES not in view.spec.spans:
                raise ArgumentError(
                    f"the samples of {view} are preference pairs, and the rejected side would be learned as well: give "
                    "collate=pairs() of tokenfeed.loader.collate, or a view with spans=['sides'] to part them yourself"
                )

    def _prepare_blocks(self, shuffle: Shuffle, views: Sequence[View]) -> int:
        """Bytes of remote data that are fetched at once because the order has need of neighbours; 0 where it has none.

        An eighth of a block of the order: the two do not begin at the same places. What is fetched is kept in memory
        until it was used, for 2 · `tile` blocks, and those of the samples that are read ahead. Where several ranks take
        the samples of a block, and no cache keeps what one of them fetches for another, each fetches its own samples.
        """
        remote = self._reader.remote
        if remote is None or not isinstance(shuffle, Local) or (self.world_size > 1 and remote.cache is None):
            return 0
        ahead = (self._prefetch + 2) * self._batch_rows
        blocks = [shuffle.block * view.stored_bytes for view in views]
        kept = (2 * shuffle.tile * block + ahead * view.stored_bytes for block, view in zip(blocks, views, strict=True))
        whole = (len(view) * view.stored_bytes for view in views)
        if self._reader.blocks is not None:
            self._reader.blocks.keep(sum(map(min, kept, whole)) * 9 // 8)
        return min(remote.request_bytes, 1 << max(0, min(blocks).bit_length() - 4))

    def amend(self, at: int | None = None, **changes: Unpack[Changes]) -> None:
        """Change the run from sample `at` on, by default from the next batch on: as `Plan.amend`.

        What was read ahead is dropped, and nothing of the run is lost or repeated. Every rank must make the same call
        after the same batch; where one does not, the states of the ranks differ from then on. States hold the change:
        the same script goes on with it, and a return to a state before the call forgets it.
        """
        self._check_between_steps("amend")
        if at is not None and at < self._next:
            raise ArgumentError(
                f"at is {at:,}, and {self._next:,} samples were delivered: what is past stays as it is. Give at >= "
                f"{self._next:,}, or go back to a checkpoint at or before {at:,} first"
            )
        self._use(self.plan.amend(self._next if at is None else at, live=True, **changes))

    def resize(
        self,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        batch_size: int | None = None,
        tokens: int | None = None,
        same_global_batch: bool = False,
    ) -> None:
        """Go on as another rank of another number of ranks, from the next batch on; as the launcher says, or as given.

        The batch size of a rank stays, or becomes `batch_size`; or, with `same_global_batch`, that which keeps the
        number of rows of all ranks together. So it is with `tokens`. Every rank must make the call after the same
        batch.
        """
        self._check_between_steps("resize")
        rank, world_size = find_rank(rank, world_size)
        rule = self.rule
        if batch_size is not None or tokens is not None:
            new = StepRule.of(batch_size, tokens)
            rule = replace(rule, size=new.size, by_tokens=new.by_tokens)
        if same_global_batch:
            rule = self.rule.spread(self.world_size, world_size)
        self.close()
        self.rule, self._since = rule, self._next
        self._place(rank, world_size)
        self._use(self.plan)

    def skip_to(self, sample: int) -> None:
        """Leave out the samples of the run before `sample`, which is the first of the next batch.

        Every rank must make the call after the same batch.
        """
        self._check_between_steps("skip_to")
        if not self._next <= whole("sample", sample) <= (sample if self._stop is None else self._stop):
            end = "" if self._stop is None else f", and it ends after {self._stop:,}"
            raise ArgumentError(f"sample is {sample:,}; the run is at {self._next:,}{end}: it can go forward alone")
        self.close()
        before, self._next, self._since = self._next, sample, sample
        self._begin_run(left_out=before)

    def _check_between_steps(self, call: str) -> None:
        if self._done:
            raise ArgumentError(
                f"{call} in the middle of a training step, after batch {self._done} of {self.rule.parts}: its samples "
                "are dealt, and some are delivered. Call it after the last batch of a step"
            )

    def __iter__(self) -> Self:
        if self._stop is not None and self._next >= self._stop:
            self.close()
            self._next = self._since = 0
        return self

    def __len__(self) -> int:
        if self._stop is None:
            raise TypeError(
                "this loader has no end, and so no length: epochs=1 makes it finite, and steps_per_epoch is that of an "
                f"epoch. {AS_DATASET}"
            )
        return self._count_batches(self._stop)

    @property
    def steps_per_epoch(self) -> int:
        """Number of batches in the first epoch, the last of which may take the first samples of the next one.

        With `tokens` it is counted from the lengths of all samples: 0.2 s for a million, once. Above 2²⁴ samples it is
        refused.
        """
        return self._count_batches(self.plan.count(1))

    def _count_batches(self, stop: int) -> int:
        """Batches of a rank from the beginning until `stop` samples were delivered."""
        rule = self.rule
        if not rule.by_tokens:
            return rule.parts * count_steps(stop, rule.size * rule.parts * self.world_size)
        if stop > _MOST_COUNTED:
            raise TypeError(
                f"how many steps {stop:,} samples take under a token budget follows from all their lengths; that is "
                f"counted for up to {_MOST_COUNTED:,}. Stop after a number of steps or samples instead"
            )
        if stop not in self._counted:
            assert self._counts is not None
            steps = rule.walk(0, self._stop, self.world_size, self._counts)
            self._counted[stop] = sum(1 for _ in takewhile(lambda step: step.start < stop, steps))
        return rule.parts * self._counted[stop]

    @property
    def next_batch_size(self) -> int:
        if self.rule.by_tokens:
            raise ArgumentError(
                f"tokens={self.rule.size} limits tokens, and batches have no fixed number of rows; give batch_size= "
                "where one is needed, and balance= beside it for equal work"
            )
        return self.rule.size

    def _note(self, batch: HostBatch) -> None:
        self._done = self._done + 1 if batch.num_delivered == self._next else 0
        self._next = batch.num_delivered
        if self._run is not None:
            self._run.deliver(self._next)

    def _use_buffers(self, buffers: Buffers) -> None:
        self._buffers = buffers
        self._steps.use_buffers(buffers)

    def _work(self) -> dict[str, Any]:
        return {**self._steps.work, "remote": self._reader.stats(), "delivered": self._next}

    def _start(self) -> tuple[Iterator[HostBatch], Callable[[], object]]:
        self._begin_run()
        batches, end = self._read()
        return batches, end if self._run is None else partial(_note_and_end, self._run, end)

    def _begin_run(self, left_out: int | None = None) -> None:
        if self._run is not None:
            self._run.begin(
                {"stores": self.plan.paths},
                self._next,
                self.world_size,
                self.rule,
                stop=self._stop,
                plan=self.plan,
                step=self._step,
                left_out=left_out,
            )
            self._step = None

    def _read(self) -> tuple[Iterator[HostBatch], Callable[[], object]]:
        # Several steps are read by one call: handing over batches one by one would cost more than reading them. Not so
        # for remote data, where the first must not wait for those after it.
        together = max(1, self._prefetch // 2) if self._reader.remote is None else 1
        place = self.rank, self.world_size, together
        if self._counts is None:
            parts = self.rule.accumulate, self._since
            coming = make_steps(self._next, self._stop, self.rule.size, *place, *parts)
        else:
            coming = deal_steps(self.rule, self._next, self._stop, *place, self._counts, self._done)
        if self._prefetch == 0:
            read = self._steps
            return (batch for steps in coming for batch in read(steps)), coming.close
        ahead: Iterator[Steps] = coming
        if self._reader.blocks is not None:  # what a quarter of its memory holds is asked for in advance
            most = self._reader.blocks.memory_bytes // 4 // self._batch_bytes
            ahead = announced(coming, self._steps.announce, max(1, min(self._prefetch, most)))
        feed = Feed(ahead, self._steps, depth=self._prefetch, per_job=together, threads=self._threads)
        return feed, feed.close

    def state_dict(self) -> dict[str, Any]:
        """The checkpoint after the last batch delivered, with the changes of the run; the same on every rank."""
        return self.plan.state(self._next)

    def load_state_dict(
        self, state: Any, *, rows: Mapping[str, Rows | list[Rows]] | None = None, step: int | None = None
    ) -> None:
        """Go on after a checkpoint, made on any number of ranks with any batch size.

        The run is then what the program gave this loader, and the changes of the state; what was changed here since is
        forgotten. Changes that the program gives from this state on stay. Rows that changes brought are opened where
        they lay and checked; where they lie elsewhere, or take settings of their own, `rows` says what they are, by
        the name of the source: a view, or a path, or a list of them in the order in which its rows came. A state that
        is refused changes nothing.

        The states of all ranks in a list are compared first. `step` is the training step that comes next, for the run
        file; one that was kept up to here knows it.
        """
        plan, num_delivered = self._given_plan.accept(state)
        if rows or plan.amendments != self.plan.amendments:
            self._use(open_rows(plan, self._given_plan, self.plan, rows))
        self.close()
        self._next, self._done, self._step = num_delivered, 0, step
        self._since = num_delivered

    def __reduce__(self) -> Any:
        size, by_tokens = self.rule.size, self.rule.by_tokens
        now = {"view": self.plan, "batch_size": None if by_tokens else size, "tokens": size if by_tokens else None}
        plain = {"seed": 0, "shuffle": True, "mask": None, "rank": self.rank, "world_size": self.world_size}
        return _open_again, ({**self._arguments, **plain, **now}, self.state_dict())

    def __repr__(self) -> str:
        end = "" if self._stop is None else f" of {self._stop:,}"
        place = f"rank {self.rank} of {self.world_size}, {self._next:,}{end} samples delivered"
        size = f"{'tokens' if self.rule.by_tokens else 'batch_size'}={self.rule.size}"
        return f"Loader({self.plan}, {size}, {place})"


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
