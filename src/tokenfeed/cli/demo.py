"""`tokenfeed demo`: turns text into a trained model, and shows it all in the browser."""

import json
import sys
import sysconfig
import tempfile
import threading
import time
import urllib.request
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from rich.rule import Rule
from rich.text import Text

from tokenfeed.cli.console import console
from tokenfeed.cli.demo_model import TinyModel
from tokenfeed.cli.inspect import inspect
from tokenfeed.cli.serve import import_page, run_until_interrupted
from tokenfeed.errors import ArgumentError, DependencyError, quantity
from tokenfeed.loader.loader import Loader
from tokenfeed.observe.diagnosis import diagnose
from tokenfeed.observe.publishing import publish
from tokenfeed.observe.rates import NO_STATS
from tokenfeed.preparation.prepare import prepare
from tokenfeed.store.store import open_store
from tokenfeed.store.windows import Windows
from tokenfeed.text.tokenizer.tokenizer import Tokenizer
from tokenfeed.text.tokenizer.vocabulary import Vocabulary, find_pattern

__all__ = ["demo"]

_TEXT_FILES = 4
_VOCABULARY = 2048
_LENGTH = 256
_BATCH_SIZE = 32
_TRAINED_ROWS = 4
_EVALUATED = 16


def demo(
    keep: Annotated[Path | None, typer.Option(help="Work in this new folder, and keep it.")] = None,
    documents: Annotated[int, typer.Option(help="Most documents to use.", min=100)] = 1_000,
    batches: Annotated[int, typer.Option(help="Batches to load when measuring speed.", min=1)] = 1_000,
    seconds: Annotated[float, typer.Option(help="Training time.", min=0.1, envvar="DEMO_SECONDS")] = 15.0,
) -> None:
    """Turn text into a store, the store into shuffled batches, train a tiny model on them, and show it in the browser.

    In a terminal the page stays open until Ctrl-C; elsewhere the demo only checks that it answers.
    """
    if keep is not None and keep.exists():
        raise ArgumentError(f"{keep} exists already; --keep needs a new folder. Choose another name")
    with tempfile.TemporaryDirectory(prefix="tokenfeed-demo-") as temporary:
        folder = keep or Path(temporary)
        tokenizer = _prepare(folder, documents)
        _chapter("Contents of the store: tokenfeed inspect")
        inspect(str(folder / "store"))
        windows = open_store(folder / "store", split="train").windows(_LENGTH)
        _load(windows, batches)
        _resume(windows)
        _train(folder, windows, tokenizer, seconds)
        _show_page(folder, is_kept=keep is not None)


def _chapter(title: str) -> None:
    console.print(Rule(title, align="left", style="dim"))


def _tell(text: str, style: str = "") -> None:
    console.print(Text(text, style=style))


def _prepare(folder: Path, num_documents: int) -> Tokenizer:
    _chapter("Text to a store: tokenfeed.Tokenizer, tokenfeed.prepare")
    texts = _write_text(folder / "text", num_documents)
    _tell(f"{len(texts):,} documents, {sum(map(len, texts)) / 1e6:.1f} million characters: Python's standard library")
    began = time.perf_counter()
    tokenizer = _make_tokenizer(texts)
    tokenizer.save(folder / "tokenizer")
    _tell(f"{tokenizer}, made in {time.perf_counter() - began:.1f} s")
    report = prepare(
        folder / "text",
        folder / "store",
        tokenizer=tokenizer,
        keep=["module"],
        val=0.1,
        workers=0,
        shard_bytes=1 << 20,
    )
    _tell(f"{report.total.tokens:,} tokens in {quantity(report.shards, 'shard')}")
    return tokenizer


def _write_text(folder: Path, num_documents: int) -> list[str]:
    """The sources of Python's standard library, which every machine has, as Parquet files."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    library = Path(sysconfig.get_path("stdlib"))
    sources = [*sorted(library.glob("[a-z]*.py")), *sorted(library.glob("[a-l]*/[a-z]*.py"))][:num_documents]
    names = [path.relative_to(library).as_posix() for path in sources]
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in sources]
    folder.mkdir(parents=True)
    for number in range(_TEXT_FILES):
        part = pa.table({"module": names[number::_TEXT_FILES], "text": texts[number::_TEXT_FILES]})
        pq.write_table(part, folder / f"{number:05}.parquet", row_group_size=16)
    return texts


def _make_tokenizer(texts: Sequence[str]) -> Tokenizer:
    """A trained tokenizer if rustbpe is installed; else one in which every byte is a token."""
    if find_spec("rustbpe"):
        return Tokenizer.train(texts, _VOCABULARY)
    ranks = {bytes([byte]): byte for byte in range(256)}
    return Tokenizer(Vocabulary(ranks, find_pattern("gpt2"), {"<|bos|>": 256}, "<|bos|>"))


def _load(windows: Windows, num_batches: int) -> None:
    _chapter("Shuffled batches: tokenfeed.Loader")
    began = time.perf_counter()
    loader = Loader(windows, _BATCH_SIZE, rank=0, world_size=1)
    batch = next(loader)
    _tell(f"the first batch, {batch.inputs.shape} {batch.inputs.dtype}, after {_ms(began)}")
    span = batch.spans["documents"][0][0]
    _tell(f"its first row begins with {span.stop - span.start:,} tokens of {span.payload['module']}")
    before, began = loader.stats(), time.perf_counter()
    for _ in range(num_batches):
        next(loader)
    seconds = time.perf_counter() - began
    items = loader.stats().items - before.items
    _tell(f"{num_batches / seconds:,.0f} batches/s, {items / seconds / 1e6:,.1f} million tokens/s")
    loader.close()


def _resume(windows: Windows) -> None:
    """Deliver one epoch: half of it to four ranks, the rest to three."""
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
                seen += batch.indices[batch.epochs == 0].tolist()
                state = batch.state
        for loader in ranks:
            loader.close()
        _tell(f"{steps:,} steps on {world_size} ranks; the state is {json.dumps(state)}")
    console.print(
        Text.assemble(
            ("✓ ", "green") if len(seen) == len(set(seen)) == len(windows) else ("✗ ", "red"),
            f"an epoch of {len(windows):,} samples delivered {len(seen):,}, {len(set(seen)):,} of them different",
        )
    )


def _train(folder: Path, windows: Windows, tokenizer: Tokenizer, seconds: float) -> None:
    _chapter("Training a tiny model: run.jsonl, observe.publish")
    model = TinyModel(tokenizer.vocab_size)
    unseen = open_store(folder / "store", split="val").windows(_LENGTH)
    rows = unseen.read(range(min(_EVALUATED, len(unseen))))
    held_out = rows.inputs, rows.targets
    before = model.bits_per_byte(*held_out, tokenizer.token_bytes)
    _tell(f"the model has {model.size:,} parameters and predicts a token from the eight before it")
    loader = Loader(windows, _TRAINED_ROWS, rank=0, world_size=1, run=folder / "run.jsonl")
    with publish(loader, folder / "run.stats.jsonl"):
        began = shown = time.perf_counter()
        for step, batch in enumerate(loader, 1):
            loss = model.train(batch.inputs, batch.targets)
            now = time.perf_counter()
            is_over = now - began > seconds
            if is_over or now - shown > seconds / 4:
                shown, stats = now, loader.stats()
                told = f"step {step:4}: loss {loss:.3f}, {stats.items / (now - began):,.0f} tokens/s"
                _tell(f"{told}, waited for data {stats.wait_fraction:.2%} of the time")
            if is_over:
                break
    loader.close()
    for sentence in diagnose(NO_STATS, loader.stats()):
        _tell(sentence, "dim")
    after = model.bits_per_byte(*held_out, tokenizer.token_bytes)
    _tell(f"validation documents: {after:.3f} bits per byte, {before:.3f} before training")


def _show_page(folder: Path, *, is_kept: bool) -> None:
    """Serve the page until Ctrl-C; if this is no terminal, only until one request is answered."""
    _chapter("In the browser: tokenfeed serve")
    if is_kept:
        _tell(f"to see it again: tokenfeed serve {folder / 'run.jsonl'} --tokenizer {folder / 'tokenizer'}")
    try:
        ui = import_page()
    except DependencyError as error:
        _tell(f"skipped: {error}", "yellow")
        return
    server = ui.Server(ui.open_subject(str(folder / "run.jsonl"), tokenizer=str(folder / "tokenizer")))
    console.print(Text(server.address), soft_wrap=True)
    if sys.stdout.isatty():
        _tell("Anyone on this machine who has this address can see the data. Ctrl-C stops.", "dim")
        run_until_interrupted(server)
        return
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPCookieProcessor())
        opener.open(server.address, timeout=20).close()
        with opener.open(f"http://127.0.0.1:{server.port}/api/live", timeout=20) as response:
            (loader,) = json.load(response)["loaders"]
    finally:
        server.stop()
        thread.join()
    _tell(f"the page answers and shows {loader['batches']:,} batches; in a terminal it stays open until Ctrl-C")


def _ms(began: float) -> str:
    return f"{1e3 * (time.perf_counter() - began):,.0f} ms"
