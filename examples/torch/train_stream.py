"""Text to a trained model, with nothing prepared: tokenizer, stream, a tiny GPT, bits per byte.

    python examples/torch/train_stream.py [FOLDER of Parquet or JSONL] [--out DIR] [--seconds 45]

Without a folder, the text is what every Python brings along: the sources of its standard library, as Parquet files.
"""

import argparse
import os
import shutil
import sysconfig
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

import tokenfeed
from tokenfeed.torch import evaluate_bpb, to_device

DEMO = Path("demo-text")
VAL = 0.05  # share of the documents, by a hash of their text
VOCABULARY = 4096
LENGTH = 256
BATCH_SIZE = 16
EVALUATION_STEPS = 8


def write_text() -> Path:
    """A few Parquet files in row groups of 16 documents."""
    shutil.rmtree(DEMO, ignore_errors=True)
    DEMO.mkdir()
    library = Path(sysconfig.get_path("stdlib"))
    sources = [*sorted(library.glob("[a-z]*.py")), *sorted(library.glob("[a-l]*/[a-z]*.py"))]
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in sources]
    for number in range(4):
        part = pa.table({"text": texts[number::4]})
        pq.write_table(part, DEMO / f"{number:05}.parquet", row_group_size=16, compression="zstd")
    print(f"text: {len(texts)} documents, {sum(map(len, texts)) / 1e6:.1f} million characters, in {DEMO}/")
    return DEMO


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
    feed = tokenfeed.stream(text, tokenizer, batch_size=BATCH_SIZE, length=LENGTH, split="val", val=VAL, epochs=1)
    bits = evaluate_bpb(model, to_device(feed, device), EVALUATION_STEPS, tokenizer)
    feed.close()
    return bits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path, nargs="?", help="a folder of Parquet or JSONL files")
    parser.add_argument("--seconds", type=float, default=float(os.environ.get("DEMO_SECONDS", "45")))
    parser.add_argument("--out", type=Path, metavar="DIR", help="keep the tokenizer and the weights there")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    seconds, device = options.seconds, options.device
    torch.manual_seed(0)
    text = options.text or write_text()

    began = time.perf_counter()
    texts = tokenfeed.text.TextFiles.find(text, split="train", val=VAL).documents()
    tokenizer = tokenfeed.Tokenizer.train(texts, VOCABULARY, max_chars=200_000_000)
    print(f"{tokenizer}, trained in {time.perf_counter() - began:.1f} s")

    feed = tokenfeed.stream(text, tokenizer, batch_size=BATCH_SIZE, length=LENGTH, val=VAL, buffer_size=200)
    model = TinyGPT(tokenizer.vocab_size, LENGTH).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    size = sum(each.numel() for each in model.parameters())
    before = bits_per_byte(model, text, tokenizer, device)
    print(f"a GPT of {size:,} parameters; {before:.3f} bits per byte before training")

    began = shown = time.perf_counter()
    for step, batch in enumerate(to_device(feed, device), 1):
        loss = model(batch.inputs, batch.targets.masked_fill(~batch.loss_mask, -1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        now = time.perf_counter()
        if now - shown > seconds / 6 or now - began > seconds:
            shown, stats = now, feed.stats()
            rate = stats.samples * LENGTH / (now - began)
            print(
                f"step {step:4}: loss {loss.item():.3f}, {rate:,.0f} tokens/s, "
                f"waited for data {stats.wait_fraction:.2%} of the time"
            )
        if now - began > seconds:
            break
    counts = feed.counts()
    print(f"{counts.rows} rows packed: {counts.lost} tokens lost, {counts.repeated} BOS tokens repeated")
    after = bits_per_byte(model, text, tokenizer, device)
    print(f"{after:.3f} bits per byte after it; the feed's checkpoint is {len(str(feed.state_dict())):,} bytes")
    if options.out:
        tokenizer.save(options.out / "tokenizer")
        torch.save(model.state_dict(), options.out / "model.pt")
    feed.close()


if __name__ == "__main__":
    main()
