"""`tokenfeed serve PATH`: a page in the browser that shows a store, a run, a running loader or a folder of text."""

import webbrowser
from importlib import import_module
from typing import Annotated, Any

import typer
from rich.text import Text

from tokenfeed.cli.console import console
from tokenfeed.cli.options import Dtype, Eos
from tokenfeed.errors import ArgumentError

__all__ = ["import_page", "run_until_interrupted", "serve"]


def serve(
    path: Annotated[str, typer.Argument(metavar="PATH", help="A store, a run or stats file, or a folder of text.")],
    port: Annotated[int, typer.Option(help="Of 127.0.0.1; 0 is any that is free.", min=0, max=65535)] = 0,
    no_open: Annotated[bool, typer.Option("--no-open", help="Do not open a browser.")] = False,
    tokenizer: Annotated[str | None, typer.Option(help="What to decode tokens, or encode text, with.")] = None,
    split: Annotated[str | None, typer.Option(help="Of a store, only the shards of this split.")] = None,
    dtype: Dtype = None,
    eos: Eos = None,
) -> None:
    """Show a store, a run or a folder of text in the browser: on this machine alone, read-only, until Ctrl-C."""
    ui = import_page()
    server = ui.Server(ui.open_subject(path, tokenizer=tokenizer, split=split, dtype=dtype, eos=eos), port=port)
    console.print(Text(server.address), soft_wrap=True)
    console.print(Text("Whoever has this address sees the data. Ctrl-C ends it.", style="dim"))
    if not no_open:
        webbrowser.open(server.address_once())
    run_until_interrupted(server)


def import_page() -> Any:
    """`tokenfeed.ui`, which needs packages of its own."""
    try:
        return import_module("tokenfeed.ui")
    except ModuleNotFoundError as error:
        if error.name not in ("starlette", "uvicorn"):
            raise
        raise ArgumentError(
            f"the page needs {error.name}, which is not installed: pip install 'tokenfeed[ui]'"
        ) from error


def run_until_interrupted(server: Any) -> None:
    """Answer until Ctrl-C, which is no error."""
    try:
        server.run()
    except KeyboardInterrupt:
        console.print()
