"""The `tokenfeed` command: one file per subcommand."""

import sys

import typer

from tokenfeed.cli import download, inspect, train_tokenizer, verify
from tokenfeed.cli.console import show_error
from tokenfeed.errors import TokenfeedError

__all__ = ["app", "main"]

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Feeds language-model training: stores of tokens, with spans over them, read in any order.",
)
app.command("download")(download.download_command)
app.command("inspect")(inspect.inspect)
app.command("train-tokenizer")(train_tokenizer.train_tokenizer)
app.command("verify")(verify.verify_command)


@app.callback()
def _options(
    context: typer.Context,
    debug: bool = typer.Option(False, "--debug", help="Show tracebacks."),
) -> None:
    context.obj = debug


def main() -> None:
    """Run the command line; errors we raise on purpose are shown in one block, without a traceback."""
    try:
        app()
    except TokenfeedError as error:
        if "--debug" in sys.argv:
            raise
        show_error(error)
        sys.exit(2)
