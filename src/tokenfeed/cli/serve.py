"""`tokenfeed serve PATH`: shows a store, a run, a running loader or a folder of text in the browser."""

import webbrowser
from importlib import import_module
from typing import Annotated, Any

import typer
from rich.text import Text

from tokenfeed.cli.console import console
from tokenfeed.cli.options import Dtype, Eos, Split
from tokenfeed.errors import DependencyError

__all__ = ["import_page", "run_until_interrupted", "serve"]


def serve(
    path: Annotated[str, typer.Argument(metavar="PATH", help="A store, a run or stats file, or a folder of text.")],
    port: Annotated[int, typer.Option(help="Port on 127.0.0.1; 0 takes any free one.", min=0, max=65535)] = 0,
    no_open: Annotated[bool, typer.Option("--no-open", help="Do not open a browser.")] = False,
    tokenizer: Annotated[str | None, typer.Option(help="Tokenizer that decodes tokens and encodes text.")] = None,
    split: Split = None,
    dtype: Dtype = None,
    eos: Eos = None,
) -> None:
    """Show a store, a run or a folder of text in the browser, read-only and on this machine only, until Ctrl-C."""
    ui = import_page()
    server = ui.Server(ui.open_subject(path, tokenizer=tokenizer, split=split, dtype=dtype, eos=eos), port=port)
    console.print(Text(server.address), soft_wrap=True)
    console.print(Text("Anyone on this machine who has this address can see the data. Ctrl-C stops.", style="dim"))
    if not no_open:
        webbrowser.open(server.address_once())
    run_until_interrupted(server)


def import_page() -> Any:
    """Import `tokenfeed.ui`, which needs optional packages."""
    try:
        return import_module("tokenfeed.ui")
    except ModuleNotFoundError as error:
        if error.name not in ("starlette", "uvicorn"):
            raise
        raise DependencyError(f"the page needs the package {error.name}: pip install 'tokenfeed[ui]'") from error


def run_until_interrupted(server: Any) -> None:
    """Answer until Ctrl-C."""
    try:
        server.run()
    except KeyboardInterrupt:
        console.print()
