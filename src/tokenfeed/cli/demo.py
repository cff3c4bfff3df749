"""`tokenfeed demo`: a store from nothing; look at it, load it, resume on other ranks."""

import json
import tempfile
import time
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.rule import Rule
from rich.text import Text

from tokenfeed.cli.console import console
from tokenfeed.cli.inspect import inspect
from tokenfeed.errors import ArgumentError
from tokenfeed.loader.loader import Loader
from tokenfeed.observe.diagnosis import diagnose
from tokenfeed.store.store import open_store
from tokenfeed.store.windows import Windows
from tokenfeed.store.writer import Writer

__all__ = ["demo"]

_LENGTH = 512
_BATCH_SIZE = 32


def demo(
    keep: Annotated[Path | None, typer.Option(help="Make the store here, and leave it there.")] = None,
    documents: Annotated[int, typer.Option(help="How many to make up.", min=100)] = 5_000,
    batches: Annotated[int, typer.Option(help="How many to load.", min=1)] = 1_000,
) -> None:
    """Write a small store, look at it, load shuffled batches, and resume on another number of ranks."""
    if keep is not None and keep.exists():
        raise ArgumentError(f"{keep} is there already; --keep makes a new store. Give another name.")
    with tempfile.TemporaryDirectory(prefix="tokenfeed-demo-") as folder:
        path = keep or Path(folder) / "store"
        _write(path, documents)
        _chapter("What is in it: tokenfeed inspect")
        inspect(str(path))
        windows = open_store(path).windows(_LENGTH)
        _load(windows, batches)
        _resume(windows)
    if keep is not None:
        console.print(Text(f"The store is {keep}: try `tokenfeed bench {keep}`, `tokenfeed verify {keep}`."))


def _chapter(title: str) -> None:
    console.print(Rule(title, align="left", style="dim"))


def _write(path: Path, num_documents: int) -> None:
    """Documents of random tokens, with the lengths that articles have, and an address each."""
    _chapter("A store: tokenfeed.Writer")
    rng = np.random.default_rng(0)
    lengths = np.maximum(1, rng.lognormal(6.2, 1.0, num_documents)).astype(int)
    began = time.perf_counter()
    with Writer(path, columns={"tokens": "uint16"}, spans={"documents": "json"}, shard_bytes=2 << 20) as writer:
        for number, length in enumerate(lengths):
            writer.append(
                {"tokens": rng.integers(0, 50_257, length)}, documents={"url": f"https://example.org/{number}"}
            )
    seconds = time.perf_counter() - began
    console.print(Text(f"wrote {lengths.sum():,} tokens in {num_documents:,} documents in {seconds:.1f} s"))


def _load(windows: Windows, num_batches: int) -> None:
    _chapter("Shuffled batches: tokenfeed.Loader")
    began = time.perf_counter()
    loader = Loader(windows, _BATCH_SIZE, rank=0, world_size=1)
    batch = next(loader)
    console.print(Text(f"the first batch, {batch.inputs.shape} {batch.inputs.dtype}, after {_ms(began)}"))
    span = batch.spans["documents"][0][0]
    told = f"its first row begins with {span.stop - span.start:,} tokens of {span.payload['url']}"
    console.print(Text(told))
    before, began = loader.stats(), time.perf_counter()
    for _ in range(num_batches):
        next(loader)
    seconds = time.perf_counter() - began
    items = loader.stats().items - before.items
    console.print(Text(f"{num_batches / seconds:,.0f} batches/s, {items / seconds / 1e6:,.0f} million tokens/s"))
    for sentence in diagnose(before, loader.stats()):
        console.print(Text(sentence, style="dim"))
    loader.close()


def _resume(windows: Windows) -> None:
    """An epoch: half on four ranks, the rest on three."""
    _chapter("Resume on other ranks: state_dict, load_state_dict")
    seen: list[int] = []
    state = None
    half = len(windows) // 2 // (4 * _BATCH_SIZE)
    rest = -(-(len(windows) - half * 4 * _BATCH_SIZE) // (3 * _BATCH_SIZE))
    for world_size, steps in ((4, half), (3, rest)):
        ranks = [Loader(windows, _BATCH_SIZE, rank=rank, world_size=world_size) for rank in range(world_size)]
        for loader in ranks:
            if state is not None:
                loader.load_state_dict(state)
        for _ in range(steps):
            for loader in ranks:
                batch = next(loader)
                seen += batch.rows.indices[batch.epochs == 0].tolist()  # type: ignore[attr-defined]
                state = batch.state
        for loader in ranks:
            loader.close()
        console.print(Text(f"{steps:,} steps on {world_size} ranks; the state is {json.dumps(state)}"))
    console.print(
        Text.assemble(
            ("✓ ", "green") if len(seen) == len(set(seen)) == len(windows) else ("✗ ", "red"),
            f"of {len(windows):,} samples, an epoch delivered {len(seen):,}, {len(set(seen)):,} of them different",
        )
    )


def _ms(began: float) -> str:
    return f"{1e3 * (time.perf_counter() - began):,.0f} ms"
