"""`tokenfeed train-tokenizer INPUT… -o OUT`: learn a vocabulary from text."""

import json
import time
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from tokenfeed.cli.console import console
from tokenfeed.cli.options import Json

if TYPE_CHECKING:
    from tokenfeed.text.sources.files import TextFiles

__all__ = ["train_tokenizer"]

_SAMPLE_CHARS = 1_000_000


def train_tokenizer(
    inputs: Annotated[
        list[str],
        typer.Argument(metavar="INPUT...", help="Parquet, JSONL or text: files, folders, patterns, addresses."),
    ],
    out: Annotated[str, typer.Option("-o", "--out", help="Folder, or file ending in .json, to save to.")],
    vocab_size: Annotated[int, typer.Option(help="Number of tokens, special ones included.")] = 32768,
    pattern: Annotated[str, typer.Option(help="nanochat, gpt2, gpt4, gpt4o, or a regular expression.")] = "nanochat",
    max_chars: Annotated[int | None, typer.Option(help="Stop after this many characters.", min=1)] = 2_000_000_000,
    doc_cap: Annotated[int | None, typer.Option(help="Characters taken of each document.", min=1)] = 10_000,
    text_column: Annotated[str, typer.Option(help="The column, or key, that holds the text.")] = "text",
    as_json: Json = False,
) -> None:
    """Learn a byte-pair vocabulary with nanochat's special tokens. Documents held out for validation are not read."""
    # Imported here: Arrow takes a quarter of a second, and other commands do not need it.
    from tokenfeed.text.sources.files import TextFiles
    from tokenfeed.text.tokenizer.tokenizer import Tokenizer

    files = TextFiles.find(inputs, text_column=text_column, split="train")
    begin = time.perf_counter()
    tokenizer = Tokenizer.train(
        files.documents(),
        vocab_size,
        pattern=pattern,
        doc_cap=doc_cap,
        max_chars=max_chars,
        progress=not as_json,
    )
    seconds = time.perf_counter() - begin
    tokenizer.save(out)
    sample = _sample(files)
    num_tokens = len(tokenizer.encode_batch(sample)[0])
    fields = {
        "path": out,
        "vocab_size": tokenizer.vocab_size,
        "digest": tokenizer.digest,
        "bytes_per_token": round(sum(len(text.encode(errors="replace")) for text in sample) / max(1, num_tokens), 3),
        "seconds": round(seconds, 2),
    }
    if as_json:
        print(json.dumps(fields, indent=2))
        return
    facts = Table.grid(padding=(0, 2))
    for name, value in fields.items():
        shown = f"{value:,}" if isinstance(value, int | float) else str(value)
        facts.add_row(Text(name.replace("_", " "), style="dim"), Text(shown))
    console.print(facts)
    if tokenizer.vocab_size < vocab_size:
        console.print(f"The text has pairs for only {tokenizer.vocab_size:,} tokens; {vocab_size:,} were asked for.")


def _sample(files: "TextFiles") -> list[str]:
    """The first texts, about a million characters of them."""
    sample, num_chars = [], 0
    for text in files.documents():
        sample.append(text)
        num_chars += len(text)
        if num_chars >= _SAMPLE_CHARS:
            break
    return sample
