"""Text to a trained model, to a store, and a page that shows it all: what `make demo` runs.

    python examples/demo.py [FOLDER of Parquet or JSONL] [--out DIR] [--seconds 60]

A tokenizer is trained, then a tiny GPT: half of the time from the text itself, half from a store that is made of it.
Without a folder, the text is what every Python brings along: the sources of its standard library, as Parquet files.
"""

import argparse
import os
import sys
import sysconfig
import threading
import time
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

import tokenfeed
from tokenfeed import observe
from tokenfeed.torch import evaluate_bpb, to_device
from tokenfeed.ui import Server, open_subject

VAL = 0.05  # share of the documents, by a hash of their text
VOCABULARY = 4096
LENGTH = 256
BATCH_SIZE = 16
EVALUATION_STEPS = 8


def write_text(folder: Path) -> Path:
    """A few Parquet files in row groups of 16 documents."""
    folder.mkdir(exist_ok=True)
    library = Path(sysconfig.get_path("stdlib"))
    sources = [*sorted(library.glob("[a-z]*.py")), *sorted(library.glob("[a-l]*/[a-z]*.py"))]
    names = [path.relative_to(library).as_posix() for path in sources]
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in sources]
    for number in range(4):
        part = pa.table({"module": names[number::4], "text": texts[number::4]})
        pq.write_table(part, folder / f"{number:05}.parquet", row_group_size=16, compression="zstd")
    print(f"text: {len(texts)} documents, {sum(map(len, texts)) / 1e6:.1f} million characters, in {folder}")
    return folder


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.think = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, width = x.shape
        parts = self.attend(self.before(x)).view(rows, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        seen = scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.project(seen.transpose(1, 2).reshape(rows, length, width))
        return x + self.think(self.between(x))


class TinyGPT(nn.Module):
    def __init__(self, vocab_size: int, length: int, *, width: int = 128, heads: int = 4, layers: int = 4) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocab_size, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.end = nn.LayerNorm(width)
        nn.init.normal_(self.tokens.weight, std=0.02)
        nn.init.normal_(self.places.weight, std=0.02)

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor, loss_reduction: str = "mean") -> torch.Tensor:
        x = self.tokens(inputs) + self.places(torch.arange(inputs.shape[1], device=inputs.device))
        logits = self.end(self.blocks(x)) @ self.tokens.weight.T
        return cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1, reduction=loss_reduction)


def bits_per_byte(model: TinyGPT, text: Path, tokenizer: tokenfeed.Tokenizer, device: str) -> float:
    """Bits per byte of the first validation batches, always the same."""
    feed = tokenfeed.stream(text, tokenizer, batch_size=BATCH_SIZE, length=LENGTH, split="val", val=VAL)
    with feed:
        return evaluate_bpb(model, to_device(feed, device), EVALUATION_STEPS, tokenizer)


def train(model: TinyGPT, optimizer: torch.optim.Optimizer, loader: Any, seconds: float, *, logged: bool) -> None:
    began = shown = time.perf_counter()
    for step, batch in enumerate(to_device(loader, model.tokens.weight.device), 1):
        targets = batch.targets if batch.loss_mask is None else batch.targets.masked_fill(~batch.loss_mask, -1)
        loss = model(batch.inputs, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if logged:
            observe.log(step, loss=loss.item())
        now = time.perf_counter()
        if now - shown > seconds / 4 or now - began > seconds:
            shown, stats = now, loader.stats()
            rate, waited = stats.items / (now - began), f"waited for data {stats.wait_fraction:.2%} of the time"
            print(f"  step {step:4}: loss {loss.item():.3f}, {rate:,.0f} tokens/s, {waited}")
        if now - began > seconds:
            return


def show(run: Path, tokenizer: Path) -> None:
    """Serve the page, in a terminal until Ctrl-C; elsewhere only look whether it answers."""
    server = Server(open_subject(str(run), tokenizer=str(tokenizer)))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        with urlopen(server.address) as answer:
            print(f"the page answers ({answer.status}): {server.address}")
        if sys.stdout.isatty():
            print("Ctrl-C stops. To see it again: tokenfeed serve", run, "--tokenizer", tokenizer)
            thread.join()
    except KeyboardInterrupt:
        print()
    finally:
        server.shutdown()
        thread.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path, nargs="?", help="a folder of Parquet or JSONL files")
    parser.add_argument("--seconds", type=float, default=float(os.environ.get("DEMO_SECONDS", "60")))
    parser.add_argument("--out", type=Path, default=Path("demo"), metavar="DIR", help="where everything is kept")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    seconds, device, out = options.seconds / 2, options.device, options.out
    torch.manual_seed(0)
    out.mkdir(parents=True, exist_ok=True)
    text = options.text or write_text(out / "text")

    began = time.perf_counter()
    texts = tokenfeed.text.TextFiles.find(text, split="train", val=VAL).documents()
    tokenizer = tokenfeed.Tokenizer.train(texts, VOCABULARY, max_chars=200_000_000)
    tokenizer.save(out / "tokenizer")
    print(f"{tokenizer}, trained in {time.perf_counter() - began:.1f} s")

    model = TinyGPT(tokenizer.vocab_size, LENGTH).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    size = sum(each.numel() for each in model.parameters())
    print(f"a GPT of {size:,} parameters: {bits_per_byte(model, text, tokenizer, device):.3f} bits per byte")

    print("from the text, tokenised and packed on the fly:")
    with tokenfeed.stream(text, tokenizer, batch_size=BATCH_SIZE, length=LENGTH, val=VAL, buffer_size=200) as feed:
        train(model, optimizer, feed, seconds, logged=False)
        counts = feed.counts()
    print(f"  {counts.rows} rows packed: {counts.lost} tokens lost, {counts.repeated} BOS tokens repeated")
    print(f"  {bits_per_byte(model, text, tokenizer, device):.3f} bits per byte")

    keep = () if options.text else ("module",)
    report = tokenfeed.prepare(text, out / "store", tokenizer=tokenizer, keep=keep, val=VAL)
    print(f"from a store of {report.total.tokens:,} tokens, shuffled as a whole:")
    windows = tokenfeed.open(out / "store", split="train").windows(LENGTH)
    with (
        tokenfeed.Loader(windows, BATCH_SIZE, run=out / "run.jsonl") as loader,
        observe.publish(loader, out / "run.stats.jsonl"),
    ):
        train(model, optimizer, loader, seconds, logged=True)
    print(f"  {bits_per_byte(model, text, tokenizer, device):.3f} bits per byte")
    torch.save(model.state_dict(), out / "model.pt")
    show(out / "run.jsonl", out / "tokenizer")


if __name__ == "__main__":
    main()
