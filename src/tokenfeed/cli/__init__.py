"""The `tokenfeed` command: one file per subcommand."""

import sys
from importlib import metadata

import typer

from tokenfeed.cli import diff, download, inspect, pack, trace, train_tokenizer, verify
from tokenfeed.cli.console import show_error
from tokenfeed.errors import TokenfeedError

__all__ = ["app", "main"]

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Feeds language-model training: from text, tokenised and packed on the way, or from stores of tokens.",
)
app.command("diff")(diff.diff)
app.command("download")(download.download_command)
app.command("inspect")(inspect.inspect)
app.command("pack")(pack.pack_command)
app.command("trace")(trace.trace)
app.command("train-tokenizer")(train_tokenizer.train_tokenizer)
app.command("verify")(verify.verify_command)


@app.callback()
def _options(
    context: typer.Context,
    debug: bool = typer.Option(False, "--debug", help="Show tracebacks."),
    version: bool = typer.Option(False, "--version", help="Show the version.", is_eager=True),
) -> None:
    if version:
        typer.echo(f"tokenfeed {metadata.version('tokenfeed')}")
        raise typer.Exit
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
