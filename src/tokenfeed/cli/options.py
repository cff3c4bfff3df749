"""Options that several commands share."""

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tokenfeed.errors import ArgumentError

if TYPE_CHECKING:
    from tokenfeed.runs.run import Run

_SHOWN_TOKENS = 200

StorePath = Annotated[str, typer.Argument(metavar="PATH", help="A store, or a token file of another system.")]
RunPath = Annotated[str, typer.Argument(metavar="RUN", help="A run file.")]
Inputs = Annotated[
    list[str],
    typer.Argument(metavar="INPUT...", help="Parquet, JSONL, Arrow or text: files, folders, patterns, addresses."),
]
TextOption = Annotated[str, typer.Option(help="The column, or key, that holds the text.")]
Stores = Annotated[
    list[str] | None, typer.Option(metavar="[SOURCE=]PATH", help="Where the data is now, if it was moved; repeatable.")
]
NewStore = Annotated[str, typer.Option("-o", "--out", metavar="STORE", help="The folder of the new store.")]
Split = Annotated[str | None, typer.Option(help='Split to read, or "all"; "train" where there are splits.')]
Dtype = Annotated[str | None, typer.Option(help="Dtype of a raw token file that does not record it, such as uint16.")]
TokenizerPath = Annotated[str | None, typer.Option("--tokenizer", help="Tokenizer by which tokens are shown as text.")]
Decoder = Callable[[Any, str | None], str]
"""Text of tokens, given what their store says of its tokenizer; another than the one at hand is refused."""
Eos = Annotated[int | None, typer.Option(help="Token that ends a document, for files without document boundaries.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Val = Annotated[
    list[str] | None,
    typer.Option(
        help="Held out for validation: a share of the documents, by a hash of their text; 'last' for the last file; a "
        "file or pattern, repeatable; 'none' for what names say alone; 'all-data' for nothing, whatever they say. "
        "Default: 0.001."
    ),
]


def parse_val(given: list[str] | None) -> float | str | Sequence[str] | None:
    """The option `val` of the library."""
    if given is None or len(given) != 1:
        return given or 0.001
    try:
        return float(given[0])
    except ValueError:
        return {"none": None, "all-data": ()}.get(given[0], given[0])


def parse_stores(given: list[str] | None, run: "Run") -> dict[str, str]:
    """Paths by source. The part before `=` is the name of a source only if there is such a source."""
    names = {source.name for start in run.starts for source in start.plan.sources}
    stores = {}
    for text in given or ():
        name, _, path = text.partition("=")
        if name not in names or not path:
            name, path = "", text
        if name not in names or (not name and len(names) > 1):
            known = ", ".join(sorted(names))
            raise ArgumentError(f"--store is {text!r}; of which source? Expected NAME=PATH with {known}")
        stores[name] = path
    return stores


def parse_field(text: str, option: str, expected: str, is_name: Callable[[str], object] = bool) -> tuple[str, str, Any]:
    """NAME=VALUE in parts: the name, the text, and what it says if it is JSON, else the text once more."""
    name, equals, value = text.partition("=")
    if not equals or not is_name(name):
        raise ArgumentError(f"{option} is {text!r}; expected {expected}")
    try:
        return name, value, json.loads(value)
    except ValueError:
        return name, value, value


def load_decoder(tokenizer: str | None, what: str) -> Decoder | None:
    """What makes text of tokens, at most a few lines of it. `what` has these tokens, for messages."""
    if tokenizer is None:
        return None
    from tokenfeed.text.tokenizer.tokenizer import Tokenizer

    loaded = Tokenizer.load(tokenizer)

    def decode(tokens: Any, recorded: str | None) -> str:
        loaded.check_made(recorded, what)
        return loaded.decode(tokens[:_SHOWN_TOKENS])

    return decode
