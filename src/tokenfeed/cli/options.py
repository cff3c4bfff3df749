"""Options that several commands share."""

from typing import Annotated

import typer

__all__ = ["Dtype", "Eos", "Json", "Split", "StorePath"]

StorePath = Annotated[str, typer.Argument(metavar="PATH", help="A store, or a token file of another system.")]
Split = Annotated[str | None, typer.Option(help="Only the shards of this split.")]
Dtype = Annotated[str | None, typer.Option(help="Of a raw file that does not say, such as uint16.")]
Eos = Annotated[int | None, typer.Option(help="The token that ends a document, for files without boundaries.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
