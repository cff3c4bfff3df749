"""The `tokenfeed` command: one file per subcommand."""

import shlex
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import typer

from tokenfeed.cli.console import show_error, to_stderr
from tokenfeed.errors import TokenfeedError
from tokenfeed.version import __version__

__all__ = ["app", "main"]

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Feeds language-model training from text, tokenised and packed on the fly, or from stores of tokens.",
    epilog="`tokenfeed --install-completion` sets up completion in your shell.",
)

_EXAMPLES = {
    "combine": "store-a store-b -o store",
    "diff": "before/run.jsonl after/run.jsonl",
    "doctor": "--json",
    "download": "climbmix-400b -n 8 -o text",
    "find": "run.jsonl --document 42",
    "inspect": "store --split val --sample 5",
    "pack": "store --length 2048",
    "prepare": "text -o store --tokenizer tokenizer --keep url",
    "seal": "s3://bucket/store",
    "serve": "store --tokenizer tokenizer",
    "top": "run.stats.jsonl",
    "trace": "run.jsonl --step 81204 --rank 0",
    "train-tokenizer": "text -o tokenizer",
    "verify": "store --quick",
}
"""The commands, each in a module of its name, with arguments that its help shows as an example."""

for _name, _example in _EXAMPLES.items():
    _module = import_module(f"tokenfeed.cli.{_name.replace('-', '_')}")
    app.command(_name, epilog=f"Example: tokenfeed {_name} {_example}")(_module.command)


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"tokenfeed {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    debug: bool = typer.Option(False, "--debug", help="Show tracebacks. May also follow the command."),
    version: bool = typer.Option(False, "--version", help="Show the version.", callback=_show_version, is_eager=True),
) -> None:
    """Both options are handled before this runs: `main` removes --debug."""


_LIBRARY_NAMES = {
    "slice_bytes": "slice_mb",
    "shard_bytes": "shard_mb",
    "separator": "no_separator",
}
"""Arguments of the library whose options have other names."""


def _list_flags(arguments: Sequence[str]) -> dict[str, str]:
    """The options of the command that was given, by their names in Python.

    Where the data is now is said by that command, with --store added.
    """
    group: Any = typer.main.get_command(app)
    command = group.commands.get(next((each for each in arguments if not each.startswith("-")), ""))
    params = () if command is None else command.params
    flags = {each.name.strip("_"): max(each.opts, key=len) for each in params if each.param_type_name == "option"}
    flags |= {ours: flags[theirs] for ours, theirs in _LIBRARY_NAMES.items() if theirs in flags}
    if "store" in flags:
        flags["stores"] = f"{shlex.join(['tokenfeed', *arguments])} --store"
    return flags


def main() -> None:
    """Run the command line. Prints errors and exits: status 2 for errors raised on purpose, else 3.

    `--debug`, anywhere on the command line, shows tracebacks instead.
    """
    arguments = sys.argv[1:]
    end = arguments.index("--") if "--" in arguments else len(arguments)
    debug = "--debug" in arguments[:end]
    arguments = [*(each for each in arguments[:end] if each != "--debug"), *arguments[end:]]
    group: Any = typer.main.get_command(app)
    if not to_stderr.is_terminal:
        group.rich_markup_mode = None  # no box around what is wrong with the arguments either
    try:
        group(arguments)
    except Exception as error:
        if debug:
            raise
        show_error(error, _list_flags(arguments))
        sys.exit(2 if isinstance(error, TokenfeedError) else 3)
