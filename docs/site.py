"""What the site adds to the pages: commands, errors and names, as the program itself has them. Used by mkdocs.yml."""

import ast
import re
from pathlib import Path
from typing import Any

import typer

from tokenfeed import errors
from tokenfeed.cli import app

SOURCE = Path(__file__).parents[1] / "src"


RECORDS = ("decisions/", "benchmarks/", "reference/", "reliability")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Words that only tests read go; marks are replaced by what the program says of itself. Guides are found first."""
    page.meta["search"] = {"boost": 0.3 if page.file.src_uri.startswith(RECORDS) else 2}
    markdown = re.sub(r"^( *```\w+) needs=\w+$", r"\1", markdown, flags=re.MULTILINE)
    markdown = re.sub(r"<!-- names of ([\w.]+) -->", lambda found: list_names(found[1]), markdown)
    for mark, describe in (("<!-- commands -->", describe_commands), ("<!-- errors -->", describe_errors)):
        if mark in markdown:
            markdown = markdown.replace(mark, describe())
    return markdown


def list_names(module: str) -> str:
    """What a module exports, for mkdocstrings; without importing it, which takes seconds where it is torch's."""
    path = SOURCE.joinpath(*module.split("."))
    text = (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text()
    found = re.search(r"^__all__ = (\[.*?\])$", text, re.DOTALL | re.MULTILINE)
    assert found is not None, module
    return "\n\n".join(
        f"::: {module}.{name}\n    options: {{show_attribute_values: false}}" for name in ast.literal_eval(found[1])
    )


def describe_errors() -> str:
    tree = str(errors.__doc__).split("\n\n", 1)[1].strip()
    return f"```text\n{tree}\n```"


def describe_commands() -> str:
    group: Any = typer.main.get_command(app)
    parts = []
    for name, command in sorted(group.commands.items()):
        context = command.make_context(name, [], resilient_parsing=True)
        usage = " ".join(["tokenfeed", name, *command.collect_usage_pieces(context)])
        options = [row for each in command.params if (row := _row(each, context))]
        parts += [f"## tokenfeed {name}", _text(command.help), f"```text\n{usage}\n```"]
        parts += ["\n".join(["| | |", "|---|---|", *options])]
        parts += [f"```text\n{command.epilog.removeprefix('Example: ')}\n```"]
    return "\n\n".join(parts)


def _row(parameter: Any, context: Any) -> str | None:
    record = parameter.get_help_record(context)
    return None if record is None else f"| `{_cell(record[0])}` | {_cell(record[1])} |"


def _text(text: str | None) -> str:
    return re.sub(r"\n\s*\n", "\n\n", re.sub(r"[ \t]+", " ", (text or "").replace("\f", "").replace("\b", ""))).strip()


def _cell(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|")
