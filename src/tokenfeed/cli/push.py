from typing import Annotated

import typer

from tokenfeed.cli.console import print_json, tell_done
from tokenfeed.cli.options import Json
from tokenfeed.store.sealing import push


def command(
    path: Annotated[str, typer.Argument(metavar="STORE", help="The folder of a store.")],
    address: Annotated[str, typer.Argument(help="hf://owner/name of a dataset; @branch and /folder may follow.")],
    private: Annotated[
        bool | None, typer.Option("--private/--public", help="Whether a repository that is made is private.")
    ] = None,
    message: Annotated[str | None, typer.Option(help="The message of the commit.")] = None,
    as_json: Json = False,
) -> None:
    """Put a store into a repository of the Hugging Face hub, in one commit. tokenfeed.open reads it from there."""
    pushed = push(path, address, message=message, private=private)
    if as_json:
        print_json({"path": path, "address": pushed})
    else:
        tell_done(f"{path} is pushed: tokenfeed.open({pushed!r})")
