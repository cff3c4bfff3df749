import webbrowser
from typing import TYPE_CHECKING, Annotated

import typer

from tokenfeed.cli.console import console, styled, tell
from tokenfeed.cli.options import Dtype, Eos, Split, Stores, parse_stores
from tokenfeed.runs.run import Run

if TYPE_CHECKING:
    from tokenfeed.ui import Server


def command(
    path: Annotated[str, typer.Argument(metavar="PATH", help="A store, or a run or stats file.")],
    port: Annotated[int, typer.Option(help="Port on 127.0.0.1; 0 takes any free one.", min=0, max=65535)] = 0,
    no_open: Annotated[bool, typer.Option("--no-open", help="Do not open a browser.")] = False,
    tokenizer: Annotated[str | None, typer.Option(help="Tokenizer that decodes tokens.")] = None,
    store: Stores = None,
    split: Split = None,
    dtype: Dtype = None,
    eos: Eos = None,
) -> None:
    """Show a store or a run in the browser, read-only and on this machine only, until Ctrl-C."""
    # Imported here because it is slow, and other commands do not need it.
    from tokenfeed.ui import Server, open_subject

    stores = parse_stores(store, Run(path)) if store else None
    subject = open_subject(path, tokenizer=tokenizer, stores=stores, split=split, dtype=dtype, eos=eos)
    server = Server(subject, port=port)
    run_until_interrupted(server, opens=not no_open)


def run_until_interrupted(server: "Server", *, opens: bool = False) -> None:
    """Print the address, and answer until Ctrl-C."""
    console.print(styled(server.address), soft_wrap=True)
    tell("Anyone on this machine who has this address can see the data. Ctrl-C stops.", style="dim")
    if opens:
        webbrowser.open(server.address_once())
    try:
        server.run()
    except KeyboardInterrupt:
        console.print()
