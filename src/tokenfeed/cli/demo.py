"""`tokenfeed demo`: turns text into a trained model, and shows it all in the browser."""

import json
import sys
import sysconfig
import tempfile
import threading
import time
from http.client import HTTPConnection
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer
from rich.rule import Rule

from tokenfeed.cli import inspect
from tokenfeed.cli.console import console, tell, tell_done
from tokenfeed.cli.demo_model import TinyModel
from tokenfeed.cli.serve import run_until_interrupted
from tokenfeed.errors import ArgumentError, quantity
from tokenfeed.loader.loader import Loader
from tokenfeed.observe.diagnosis import NO_STATS, diagnose
from tokenfeed.observe.snapshots import log, publish
from tokenfeed.preparation.prepare import prepare
from tokenfeed.store.store import open_store
from tokenfeed.store.windows import Windows
from tokenfeed.text.tokenizer.tokenizer import Tokenizer
from tokenfeed.text.tokenizer.vocabulary import Vocabulary, find_pattern
from tokenfeed.ui.server import HEADER, Server
from tokenfeed.ui.subject import open_subject

_TEXT_FILES = 4
_VOCABULARY = 2048
_LENGTH = 256
_BATCH_SIZE = 32
_TRAINED_ROWS = 4
_EVALUATED = 16


def command(
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
        _chapter("Text to a store: tokenfeed.Tokenizer, tokenfeed.prepare")
        tokenizer = _prepare(folder, documents)
        _chapter("Contents of the store: tokenfeed inspect")
        inspect.command(str(folder / "store"))
        windows = open_store(folder / "store", split="train").windows(_LENGTH)
        _chapter("Shuffled batches: tokenfeed.Loader")
        _load(windows, batches)
        _chapter("Resume on other ranks: state_dict, load_state_dict")
        _resume(windows)
        _chapter("Training a tiny model: run.jsonl, observe.publish, observe.log")
        _train(folder, windows, tokenizer, seconds)
        _chapter("In the browser: tokenfeed serve")
        if keep is not None:
            tell(f"to see it again: tokenfeed serve {folder / 'run.jsonl'} --tokenizer {folder / 'tokenizer'}")
        _show_page(folder)


def _chapter(title: str) -> None:
    console.print(Rule(title, align="left", style="dim"))


def _prepare(folder: Path, num_documents: int) -> Tokenizer:
    """A store of the sources of Python's standard library, which every machine has, and its tokenizer."""
    library = Path(sysconfig.get_path("stdlib"))
    sources = [*sorted(library.glob("[a-z]*.py")), *sorted(library.glob("[a-l]*/[a-z]*.py"))][:num_documents]
    names = [path.relative_to(library).as_posix() for path in sources]
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in sources]
    (folder / "text").mkdir(parents=True)
    documents = [json.dumps({"module": name, "text": text}) for name, text in zip(names, texts, strict=True)]
    for number in range(_TEXT_FILES):
        lines = "\n".join(documents[number::_TEXT_FILES])
        (folder / "text" / f"{number:05}.jsonl").write_text(lines, encoding="utf-8")
    tell(f"{len(texts):,} documents, {sum(map(len, texts)) / 1e6:.1f} million characters: Python's standard library")
    began = time.perf_counter()
    if find_spec("rustbpe"):
        tokenizer = Tokenizer.train(texts, _VOCABULARY)
    else:  # every byte is a token
        ranks = {bytes([byte]): byte for byte in range(256)}
        tokenizer = Tokenizer(Vocabulary(ranks, find_pattern("gpt2"), {"<|bos|>": 256}, "<|bos|>"))
    tokenizer.save(folder / "tokenizer")
    tell(f"{tokenizer}, made in {time.perf_counter() - began:.1f} s")
    where = folder / "text", folder / "store"
    report = prepare(*where, tokenizer=tokenizer, keep=["module"], val=0.1, workers=0, shard_bytes=1 << 20)
    tell(f"{report.total.tokens:,} tokens in {quantity(report.shards, 'shard')}")
    return tokenizer


def _load(windows: Windows, num_batches: int) -> None:
    began = time.perf_counter()
    with Loader(windows, _BATCH_SIZE, rank=0, world_size=1) as loader:
        batch = next(loader)
        after = f"{1e3 * (time.perf_counter() - began):,.0f} ms"
        tell(f"the first batch, {batch.inputs.shape} {batch.inputs.dtype}, after {after}")
        span = batch.spans["documents"][0][0]
        tell(f"its first row begins with {span.stop - span.start:,} tokens of {span.payload['module']}")
        before, began = loader.stats(), time.perf_counter()
        for _ in range(num_batches):
            next(loader)
        seconds = time.perf_counter() - began
        items = loader.stats().items - before.items
        tell(f"{num_batches / seconds:,.0f} batches/s, {items / seconds / 1e6:,.1f} million tokens/s")


def _resume(windows: Windows) -> None:
    """Deliver one epoch: half of it to four ranks, the rest to three."""
    seen: list[int] = []
    state = None
    for world_size, steps in ((4, len(windows) // (8 * _BATCH_SIZE)), (3, None)):
        for rank in range(world_size):
            with Loader(windows, _BATCH_SIZE, rank=rank, world_size=world_size, epochs=1) as loader:
                if state is not None:
                    loader.load_state_dict(state)
                for batch in islice(loader, steps):
                    seen += batch.indices.tolist()
        state = batch.state  # the same on all ranks
        tell(f"after {world_size} ranks the state is {json.dumps(state)}")
    different = len(set(seen))
    told = f"an epoch of {len(windows):,} samples delivered {len(seen):,}, {different:,} of them different"
    tell_done(told) if len(seen) == different == len(windows) else tell(("✗ ", "red"), told)


def _train(folder: Path, windows: Windows, tokenizer: Tokenizer, seconds: float) -> None:
    model = TinyModel(tokenizer.vocab_size)
    unseen = open_store(folder / "store", split="val").windows(_LENGTH)
    rows = unseen.read(range(min(_EVALUATED, len(unseen))))
    before = model.bits_per_byte(rows.inputs, rows.targets, tokenizer.token_bytes)
    size = sum(each.size for each in model.parameters)
    tell(f"the model has {size:,} parameters and predicts a token from the eight before it")
    with (
        Loader(windows, _TRAINED_ROWS, rank=0, world_size=1, run=folder / "run.jsonl") as loader,
        publish(loader, folder / "run.stats.jsonl"),
    ):
        began = shown = now = time.perf_counter()
        while now - began < seconds:
            batch = next(loader)
            loss = model.train(batch.inputs, batch.targets)
            log(loader.stats().batches, loss=loss)
            now = time.perf_counter()
            if now - began >= seconds or now - shown > seconds / 4:
                shown, stats = now, loader.stats()
                told = f"step {stats.batches:4}: loss {loss:.3f}, {stats.items / (now - began):,.0f} tokens/s"
                tell(f"{told}, waited for data {stats.wait_fraction:.2%} of the time")
    for sentence in diagnose(NO_STATS, loader.stats()):
        tell(sentence, style="dim")
    after = model.bits_per_byte(rows.inputs, rows.targets, tokenizer.token_bytes)
    tell(f"validation documents: {after:.3f} bits per byte, {before:.3f} before training")


def _show_page(folder: Path) -> None:
    """Serve the page until Ctrl-C; if this is no terminal, only until one question is answered."""
    server = Server(open_subject(str(folder / "run.jsonl"), tokenizer=str(folder / "tokenizer")))
    if sys.stdout.isatty():
        run_until_interrupted(server)
        return
    console.print(server.address, soft_wrap=True, markup=False, highlight=False)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        connection = HTTPConnection("127.0.0.1", server.port, timeout=20)
        connection.request("GET", "/api/live", headers={HEADER: server.token})
        (loader,) = json.load(connection.getresponse())["loaders"]
    finally:
        server.shutdown()
        thread.join()
    tell(f"the page answers and shows {loader['batches']:,} batches; in a terminal it stays open until Ctrl-C")
