"""Measures what `docs/guides/choosing.md` compares, as three tables in Markdown: `python bench/choosing.py [--quick]`.

Stream or store; windows, packed rows or padding; rows dealt out to ranks or a shard for each. The text is the Python
sources that are installed here, the same for all. Rates of one table are measured by turns, in one run.
"""

import argparse
import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import tokenfeed
from measure import Neighbours, Series, interleave
from text import find_text, find_tokenizer
from tokenfeed.loader.collate import pad

LENGTH = 2048
BATCH_SIZE = 32
RANKS = 8
GROUP = 64
"""Documents in a row group of the text, so that there are enough groups to tell how well they mix."""
MADE = Path(__file__).parent / ".data" / "choosing"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="4 MB of text instead of 50, and few repetitions")
    quick = parser.parse_args().quick
    neighbours = Neighbours()
    found = find_text(None, 4 if quick else 50)
    tokenizer = find_tokenizer(found)
    shutil.rmtree(MADE, ignore_errors=True)
    text = MADE / "text"
    text.mkdir(parents=True)
    everything = pa.concat_tables([pq.read_table(path) for path in sorted(found.glob("*.parquet"))])
    pq.write_table(everything, text / "0.parquet", row_group_size=GROUP, compression="zstd")
    repetitions = 3 if quick else 9
    roads(text, tokenizer, repetitions)
    rows(text, tokenizer, repetitions)
    ranks(repetitions)
    shutil.rmtree(MADE)
    print(f"\nOther processes took {neighbours.share():.0%} of the processors.")


def roads(text: Path, tokenizer: tokenfeed.Tokenizer, repetitions: int) -> None:
    """The streaming road beside the indexed one."""
    began = time.perf_counter()
    tokenfeed.prepare(text, MADE / "store", tokenizer=tokenizer, val=None, workers=2)
    preparing = time.perf_counter() - began
    store = tokenfeed.open(MADE / "store")

    def stream() -> Any:
        return tokenfeed.stream(text, tokenizer, batch_size=BATCH_SIZE, length=LENGTH, split="all")

    def load() -> Any:
        return tokenfeed.Loader(store.windows(LENGTH), BATCH_SIZE)

    kinds = {"stream": stream, "store": load}
    rates, costs = measure_rates({name: make() for name, make in kinds.items()}, repetitions)
    firsts = {name: min(first_batch(make) for _ in range(repetitions)) for name, make in kinds.items()}
    size = sum(file.stat().st_size for file in (MADE / "store").rglob("*") if file.is_file())
    lengths = store.documents().read(range(len(store.documents()))).lengths
    weights = np.add.reduceat(lengths, np.arange(0, len(lengths), GROUP)) / lengths.sum()
    shares = {"stream": same_group(stream_groups(stream())), "store": same_group(store_groups(load()))}
    show(
        "stream or store",
        ("", "stream", "store"),
        ("tokens/s, against the stream", "1", f"{rates['store'].over(rates['stream']).median:.0f}"),
        ("processor time a token, against the stream", "1", f"{costs['store'] / costs['stream']:.3f}"),
        (
            f"first batch, the quickest of {repetitions}",
            f"{firsts['stream']:.2f} s",
            f"{1000 * firsts['store']:.1f} ms",
        ),
        ("before that, once", "nothing", f"{preparing:.0f} s to prepare {store.num_items / 1e6:.1f} M tokens"),
        ("disk beside the text", "none", f"{size / store.num_items:.2f} bytes a token"),
        (
            f"pairs of a batch from one row group, of {len(weights)} (at random {100 * (weights**2).sum():.1f}%)",
            *(f"{100 * shares[name]:.1f}%" for name in kinds),
        ),
    )


def rows(text: Path, tokenizer: tokenfeed.Tokenizer, repetitions: int) -> None:
    """What a row is made of."""
    store = tokenfeed.open(MADE / "store")
    made = store.pack(LENGTH)
    cut = pad(multiple_of=64, max_length=LENGTH)
    loaders = {
        "windows": tokenfeed.Loader(store.windows(LENGTH), BATCH_SIZE),
        "packed": tokenfeed.Loader(store.packed(LENGTH), BATCH_SIZE),
        "padded": tokenfeed.Loader(store.documents(), BATCH_SIZE, collate=cut),
    }
    rates, _ = measure_rates(loaders, repetitions)
    lengths = store.documents().read(range(len(store.documents()))).lengths
    starts = np.cumsum(lengths) - lengths
    broken = float(np.mean(starts // LENGTH != (starts + lengths - 1) // LENGTH))
    longer = float(np.mean(lengths > LENGTH))
    order = loaders["padded"].plan.locate(np.arange(len(lengths)))[2]
    whole, short = padding(lengths[order]), padding(np.minimum(lengths, LENGTH)[order])
    cropped = {how: crop(text, tokenizer, how, store.num_items) for how in ("split", "crop")}

    def against(name: str) -> str:
        return f"{rates[name].over(rates['windows']).median:.2f}"

    show(
        "windows, packed or padded",
        ("", "positions wasted", "tokens lost", "documents in several rows", "useful tokens/s"),
        ("`windows(2048)`", "0", "0", percent(broken), "1"),
        (
            "`packed(2048)`",
            percent(1 - made.used),
            "0",
            percent(made.cut_documents / made.documents),
            against("packed"),
        ),
        (
            "documents, `pad(multiple_of=64, max_length=2048)`",
            percent(short),
            percent(1 - np.minimum(lengths, LENGTH).sum() / lengths.sum()),
            f"0 ({percent(longer)} cut short)",
            against("padded"),
        ),
        ("documents, `pad(multiple_of=64)`", percent(whole), "0", "0", ""),
        ('stream, `overflow="split"`', percent(cropped["split"][1]), percent(cropped["split"][0]), "", ""),
        ('stream, `overflow="crop"`', percent(cropped["crop"][1]), percent(cropped["crop"][0]), "", ""),
    )


def padding(lengths: np.ndarray) -> float:
    """The share of positions that hold no token, in batches that are as wide as their longest document."""
    batches = [lengths[start : start + BATCH_SIZE] for start in range(0, len(lengths), BATCH_SIZE)]
    positions = sum(len(batch) * -(-int(batch.max()) // 64) * 64 for batch in batches)
    return 1 - int(lengths.sum()) / positions


def crop(text: Path, tokenizer: tokenfeed.Tokenizer, overflow: str, num_tokens: int) -> tuple[float, float]:
    """The shares of tokens lost, and of positions that hold a repeated BOS, over about one epoch of a stream."""
    feed = tokenfeed.stream(text, tokenizer, batch_size=BATCH_SIZE, length=LENGTH, split="all", overflow=overflow)
    while feed.counts().rows * LENGTH + feed.counts().lost < num_tokens:
        next(feed)
    counts = feed.counts()
    feed.close()
    positions = counts.rows * (LENGTH + 1)
    return counts.lost / (positions + counts.lost), counts.repeated / positions


def ranks(repetitions: int) -> None:
    """Rows of one order dealt out to the ranks, beside a shard for each rank: the text cut into as many parts."""
    documents = tokenfeed.open(MADE / "store").documents()
    bounds = np.linspace(0, len(documents), RANKS + 1).astype(int)
    parts = []
    for rank, (start, stop) in enumerate(pairwise(bounds)):
        parts.append(MADE / f"part-{rank}")
        batch = documents.read(range(start, stop))
        with tokenfeed.Writer(parts[-1], columns={"tokens": "uint16"}, spans={"documents": None}) as writer:
            writer.append({"tokens": batch.column("tokens")}, lengths=batch.lengths.tolist())
    views = [tokenfeed.open(part).windows(LENGTH) for part in parts]
    together = tokenfeed.open(parts).windows(LENGTH)
    loaders = {
        "dealt out": tokenfeed.Loader(together, BATCH_SIZE, rank=0, world_size=RANKS),
        "a shard each": tokenfeed.Loader(views[0], BATCH_SIZE, rank=0, world_size=1),
    }
    rates, _ = measure_rates(loaders, repetitions)
    counts = np.array([len(view) for view in views])
    ends = np.cumsum(counts)
    batches = [next(loaders["dealt out"]).samples for _ in range(200)]
    shards = [np.searchsorted(ends, loaders["dealt out"].plan.locate(batch)[2], side="right") for batch in batches]
    show(
        f"dealt out or a shard each, {RANKS} ranks",
        ("", "dealt out", "a shard for each rank"),
        ("tokens/s of a rank", "1", f"{rates['a shard each'].over(rates['dealt out']).median:.2f}"),
        (
            "windows of an epoch left out, if all ranks stop with the first",
            "0",
            percent(1 - RANKS * int(counts.min()) / int(counts.sum())),
        ),
        ("pairs of a rank's batch from one shard", percent(same_group(shards)), "100%"),
        ("goes on with another number of ranks", "yes", "no"),
    )


def measure_rates(feeds: dict[str, Any], repetitions: int) -> tuple[dict[str, Series], dict[str, float]]:
    """(useful tokens a second, processor seconds a token), by turns; what was made ahead meanwhile does not count."""
    costs: dict[str, list[float]] = {name: [] for name in feeds}

    def measure(name: str) -> Callable[[int], float]:
        def once(_: int) -> float:
            feed = feeds[name]
            for _ in range(feed.stats().queued + 1):
                next(feed)
            began, processor, tokens = time.perf_counter(), time.process_time(), 0
            while time.perf_counter() - began < 0.5:
                tokens += useful(next(feed))
            costs[name].append((time.process_time() - processor) / tokens)
            return tokens / (time.perf_counter() - began)

        return once

    series = interleave({name: measure(name) for name in feeds}, repetitions=repetitions)
    return series, {name: statistics.median(values) for name, values in costs.items()}


def useful(batch: Any) -> int:
    """Tokens of a batch that are no padding; the few of packed rows that are count too."""
    return int(batch.data.lengths.sum()) if batch.data is not None else int(batch.inputs.size)


def first_batch(make: Callable[[], Any]) -> float:
    began = time.perf_counter()
    feed = make()
    next(feed)
    seconds = time.perf_counter() - began
    feed.close()
    return seconds


def stream_groups(feed: Any) -> Iterator[np.ndarray]:
    """Of 50 batches, the row group that each row begins with."""
    for _ in range(50):
        batch = next(feed)
        firsts = [row[0].number for row in batch.spans["documents"]]
        pieces = batch.documents[np.asarray(firsts)]
        yield pieces[:, 0] * 1_000_000 + pieces[:, 1]


def store_groups(loader: Any) -> Iterator[np.ndarray]:
    for _ in range(50):
        yield np.array([row[0].number for row in next(loader).spans["documents"]]) // GROUP


def same_group(batches: Sequence[np.ndarray] | Iterator[np.ndarray]) -> float:
    """The share of pairs of rows of a batch that are of one group."""
    shares = []
    for groups in batches:
        counts = np.unique(groups, return_counts=True)[1]
        shares.append(float((counts * (counts - 1)).sum()) / (len(groups) * (len(groups) - 1)))
    return statistics.mean(shares)


def percent(share: float) -> str:
    return "0" if share == 0 else f"{100 * share:.2g}%"


def show(title: str, *lines: Sequence[str]) -> None:
    print(f"\n{title}\n")
    for number, line in enumerate(lines):
        print(f"| {' | '.join(line)} |")
        if number == 0:
            print("|" + "---|" * len(line))


if __name__ == "__main__":
    main()
