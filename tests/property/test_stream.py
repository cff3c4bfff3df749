"""Streams under random histories: the rows are those of the uninterrupted run, and no document is lost or repeated."""

import json
import tempfile
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from golden import golden_tokenizer
from oracle import Leg, run
from tiers import examples, slow
from tokenfeed.text.sources.files import TextFiles
from tokenfeed.text.streaming.documents import FileDocuments
from tokenfeed.text.streaming.feed import stream
from tokenfeed.text.streaming.lanes import SavedStream

PACKINGS = [("best_fit", "split"), ("best_fit", "crop"), ("concat", "split"), ("concat_pop", "split")]
LAYOUTS = {
    "even": [[5, 5, 5, 5], [5, 5, 5, 5], [5, 5, 5, 5]],
    "uneven": [[1, 9, 3], [2], [7, 1, 1, 12, 4]],
    "empty row groups": [[0, 4, 0, 6], [3, 0, 3, 3]],
    "one file": [[2, 3, 4, 5, 6, 7]],
}


@cache
def folder() -> Path:
    """Documents of 0 to 60 words, some null, in files of several layouts."""
    root = Path(tempfile.mkdtemp(prefix="tokenfeed-test-"))
    random = np.random.default_rng(7)
    for name, files in LAYOUTS.items():
        (root / name).mkdir()
        for number, groups in enumerate(files):
            schema = pa.schema([("text", pa.string()), ("url", pa.string())])
            with pq.ParquetWriter(root / name / f"{number:02}.parquet", schema) as writer:
                for size in groups:
                    texts = [text_of(random) for _ in range(size)]
                    writer.write_table(pa.table({"text": texts, "url": ["…"] * size}, schema=schema))
    return root


def text_of(random: np.random.Generator) -> str | None:
    if random.random() < 0.05:
        return None
    return " ".join(str(word) for word in random.integers(0, 999, int(random.exponential(8))))


def make(layout: str, **options: Any) -> Any:
    return stream(folder() / layout, golden_tokenizer("tiktoken"), split="all", **options)


class Ledger:
    """How often every token of every document was delivered."""

    def __init__(self, length: int, packing: str) -> None:
        self.delivered: Counter[tuple[tuple[int, int, int], int]] = Counter()
        self._length = length
        self._packing = packing

    def see(self, batch: Any, source: int = 0, first_file: int = 0) -> None:
        """Of a mixture, the rows of one source, whose files are numbered from `first_file` on.

        BOS does not count. Of rows that are concatenated the last token comes again as the first of the next row."""
        spans = batch.spans["documents"]
        rows = np.repeat(np.arange(len(batch)), np.diff(spans.offsets))
        for (file, *place, before), row, start, stop in zip(
            batch.documents.tolist(), rows, spans.starts.tolist(), spans.stops.tolist(), strict=True
        ):
            if batch.sources[row] != source:
                continue
            if self._packing == "concat":
                stop = min(stop, self._length)
            is_led = bool(batch.tokens[row, start] == golden_tokenizer("tiktoken").bos_id)
            assert is_led or self._packing == "concat"
            for token in range(before + 1, before + 1 + max(0, stop - start - is_led)):
                self.delivered[(file - first_file, *place), token] += 1


class Document(NamedTuple):
    place: tuple[int, int, int]
    length: int


@cache
def documents(layout: str) -> list[Document]:
    """All documents in order, with their length in tokens, BOS included."""
    found = []
    for file, groups in enumerate(LAYOUTS[layout]):
        for group in range(len(groups)):
            table = pq.ParquetFile(folder() / layout / f"{file:02}.parquet").read_row_group(group)
            for row, text in enumerate(table["text"].to_pylist()):
                if text is not None:
                    found.append(Document((file, group, row), 1 + len(golden_tokenizer("tiktoken").encode(text))))
    return found


def check_nothing_lost(
    layout: str, ledger: Ledger, states: Any, packing: str, seed: int | None, source_number: int = 0
) -> None:
    """What was delivered, waits and is unread is every token of every document once an epoch, as far as reading got.

    The remaining documents are dealt out to one lane, as they would be for one rank.
    """
    files = TextFiles.find(folder() / layout)
    source = FileDocuments(files, golden_tokenizer("tiktoken"), sharding="global", seed=seed, refill_size=4)
    (cursor,) = source.deal(SavedStream.from_json(states).position.of_source(source_number), 1)
    waiting = {}
    for file, group, row, done in cursor.pending.tolist():
        waiting.setdefault((file % len(files), group, row), []).append(done)
    unread = Counter()
    for file, group, first in cursor.rest:
        place = file % len(files), group
        unread.update(each.place for each in documents(layout) if each.place[:2] == place and each.place[2] >= first)
    order = [
        (file, group)
        for part in range(1 if seed is not None else len(files))
        for file, group in groups_in_order(source, files, part, cursor.epoch, seed)
    ]
    position = groups_before(files, cursor.part, seed) + cursor.group
    reached = set(order[:position])
    for document in documents(layout):
        times = cursor.epoch + (document.place[:2] in reached) - unread[document.place]
        for token in range(1, document.length):
            left = sum(1 for done in waiting.get(document.place, ()) if token >= done + (packing == "best_fit"))
            assert ledger.delivered[document.place, token] + left == times, (document, token)


def groups_before(files: Any, part: int, seed: int | None) -> int:
    return 0 if seed is not None else sum(files.num_groups(file) for file in range(part))


def groups_in_order(source: Any, files: Any, part: int, epoch: int, seed: int | None) -> list[tuple[int, int]]:
    stride = source.stride(1)
    places = [stride._locate(epoch, part, group) for group in range(stride._num_groups(part))]
    return [(file % len(files), group) for file, group, _ in places]


LEGS = st.lists(
    st.builds(Leg, st.sampled_from([1, 2, 3, 4]), st.integers(1, 5), st.integers(0, 5), st.sampled_from([0, 1, 3])),
    min_size=1,
    max_size=4,
)


@given(
    layout=st.sampled_from(["even", "uneven", "one file"]),
    history=LEGS,
    packing=st.sampled_from([("best_fit", "split"), ("concat", "split")]),
    length=st.integers(1, 40),
    buffer_size=st.integers(1, 12),
    refill_size=st.integers(1, 6),
    seed=st.sampled_from([None, 3]),
)
@settings(max_examples=examples(120))
def test_any_history_delivers_every_token_once_an_epoch(
    layout, history, packing, length, buffer_size, refill_size, seed
):
    """Any number of ranks in every leg: where it does not divide the lanes, documents are dealt out again."""
    how, overflow = packing
    ledger = Ledger(length, how)
    states = []

    def made(**options):
        feed = make(
            layout,
            length=length,
            packing=how,
            overflow=overflow,
            buffer_size=buffer_size,
            refill_size=refill_size,
            seed=seed,
            **options,
        )
        states.append(feed)
        return feed

    run(history, made, per_rank=True, see=ledger.see)
    last = [feed.state_dict() for feed in states[-history[-1].world_size :]]
    check_nothing_lost(layout, ledger, last, how, seed)


@given(
    history=LEGS,
    packing=st.sampled_from([("best_fit", "split"), ("concat", "split")]),
    length=st.integers(1, 40),
    buffer_size=st.integers(1, 12),
    weight=st.sampled_from([0.5, 0.3, 0.9]),
    seed=st.sampled_from([None, 3]),
)
@settings(max_examples=examples(60))
def test_any_history_of_a_mixture_delivers_every_token_of_every_source(
    history, packing, length, buffer_size, weight, seed
):
    """Shares are those of the schedule wherever a round ends, and each source loses and repeats nothing."""
    how, overflow = packing
    layouts, states, drawn = ("even", "uneven"), [], {}
    ledgers = [Ledger(length, how) for _ in layouts]
    sources = {name: (folder() / name, share) for name, share in zip(layouts, (weight, 1 - weight), strict=True)}

    def made(**options):
        how_made = {"length": length, "packing": how, "overflow": overflow, "buffer_size": buffer_size, "seed": seed}
        feed = stream(sources, golden_tokenizer("tiktoken"), split="all", refill_size=4, **how_made, **options)
        if options["rank"] == 0:
            states.clear()
        states.append(feed)
        return feed

    def see(batch):
        drawn.update(zip(batch.samples.tolist(), batch.sources.tolist(), strict=True))
        for source, first_file in enumerate((0, len(LAYOUTS["even"]))):
            ledgers[source].see(batch, source, first_file)

    rows = run(history, made, per_rank=True, see=see)
    assert [row.sample for row in rows] == list(range(len(rows)))
    at_end = [feed.state_dict() for feed in states]
    position = SavedStream.from_json(at_end).position
    if position.round_end == len(rows):
        assert abs(sum(source == 0 for source in drawn.values()) - weight * len(rows)) <= 1
    for source, layout in enumerate(layouts):
        check_nothing_lost(layout, ledgers[source], at_end, how, seed, source)


@given(
    layout=st.sampled_from(sorted(LAYOUTS)),
    lanes=st.sampled_from([1, 2, 4]),
    legs=st.lists(
        st.tuples(st.sampled_from([1, 2, 4]), st.integers(1, 4), st.integers(0, 4), st.sampled_from([0, 2])), max_size=4
    ),
    packing=st.sampled_from(PACKINGS[:3]),
    sharding=st.sampled_from(["global", "per_file"]),
    buffer_size=st.integers(1, 12),
)
@settings(max_examples=examples(80))
def test_ranks_that_divide_the_lanes_deliver_the_same_rows(layout, lanes, legs, packing, sharding, buffer_size):
    how, overflow = packing

    def made(**options):
        return make(
            layout,
            lanes=lanes,
            length=12,
            packing=how,
            overflow=overflow,
            sharding=sharding,
            buffer_size=buffer_size,
            refill_size=4,
            **options,
        )

    if sharding == "per_file" and max(map(len, LAYOUTS[layout])) < lanes:
        return
    history = [Leg(world_size, *rest) for world_size, *rest in legs if lanes % world_size == 0]
    rows = run(history, made, per_rank=True)
    assert rows == run([Leg(1, 1, len(rows))], made, per_rank=True)


@pytest.mark.parametrize("lanes", [1, 3, *slow(2, 4)])
@pytest.mark.parametrize(("packing", "overflow"), PACKINGS)
def test_resume_after_every_batch(lanes, packing, overflow):
    """On one rank that owns all lanes, and, from the state of the last rank alone, on as many ranks as lanes."""
    options = {
        "lanes": lanes,
        "batch_size": 3,
        "length": 10,
        "packing": packing,
        "overflow": overflow,
        "buffer_size": 7,
        "refill_size": 3,
    }
    for rank, world_size in ((0, 1), (lanes - 1, lanes)):
        whole = make("uneven", rank=rank, world_size=world_size, **options)
        batches = [next(whole) for _ in range(25)]
        for step, batch in enumerate(batches[:22]):
            resumed = make("uneven", rank=rank, world_size=world_size, prefetch=step % 3, **options)
            resumed.load_state_dict(json.loads(json.dumps(batch.state)))
            for expected in batches[step + 1 : step + 4]:
                again = next(resumed)
                np.testing.assert_array_equal(again.tokens, expected.tokens)
                assert again.samples.tolist() == expected.samples.tolist()
                assert again.state == expected.state
            resumed.close()
        whole.close()
