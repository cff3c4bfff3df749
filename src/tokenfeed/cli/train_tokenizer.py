import sys
import time
from itertools import islice
from typing import Annotated

import typer

from tokenfeed.cli.console import print_json, tell, tell_facts
from tokenfeed.cli.options import Inputs, Json, TextOption, Val, parse_val

_SAMPLE_TEXTS, _SAMPLE_CHARS = 1_000, 10_000


def command(
    inputs: Inputs,
    out: Annotated[str, typer.Option("-o", "--out", help="Folder, or file ending in .json, to save to.")],
    vocab_size: Annotated[int, typer.Option(help="Number of tokens, special ones included.")] = 32768,
    pattern: Annotated[str, typer.Option(help="nanochat, gpt2, gpt4, gpt4o, or a regular expression.")] = "nanochat",
    max_chars: Annotated[int | None, typer.Option(help="Stop after this many characters.", min=1)] = 2_000_000_000,
    doc_cap: Annotated[int | None, typer.Option(help="Characters taken of each document.", min=1)] = 10_000,
    text_column: TextOption = "text",
    val: Val = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a tokenizer that is there already.")] = False,
    as_json: Json = False,
) -> None:
    """Learn a byte-pair vocabulary with nanochat's special tokens. Documents held out for validation are not read."""
    # Imported here: Arrow takes a quarter of a second, and other commands do not need it.
    from tokenfeed.text.sources.files import TextFiles
    from tokenfeed.text.tokenizer.tokenizer import Tokenizer
    from tokenfeed.text.tokenizer.vocabulary_files import check_place

    check_place(out, overwrite=overwrite)  # before hours of work
    files = TextFiles.find(inputs, text_column=text_column, split="train", val=parse_val(val))
    begin = time.perf_counter()
    show = not as_json
    try:
        tokenizer = Tokenizer.train(
            files.documents(), vocab_size, pattern=pattern, doc_cap=doc_cap, max_chars=max_chars, progress=show
        )
    except KeyboardInterrupt:
        print("Interrupted: nothing was saved.", file=sys.stderr)
        raise typer.Exit(130) from None
    seconds = time.perf_counter() - begin
    tokenizer.save(out, overwrite=overwrite)
    sample = [text[:_SAMPLE_CHARS] for text in islice(files.documents(), _SAMPLE_TEXTS)]
    num_tokens = len(tokenizer.encode_batch(sample)[0])
    fields = {
        "path": out,
        "vocab_size": tokenizer.vocab_size,
        "digest": tokenizer.digest,
        "bytes_per_token": round(sum(len(text.encode(errors="replace")) for text in sample) / max(1, num_tokens), 3),
        "seconds": round(seconds, 2),
        **({"held_out": files.held_out} if files.held_out else {}),
    }
    if as_json:
        print_json(fields)
        return
    shown = {name: f"{value:,}" if isinstance(value, int | float) else value for name, value in fields.items()}
    tell_facts({name.replace("_", " "): value for name, value in shown.items()})
    if tokenizer.vocab_size < vocab_size:
        tell(f"The text has pairs for only {tokenizer.vocab_size:,} tokens; {vocab_size:,} were asked for.")
