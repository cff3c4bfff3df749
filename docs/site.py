"""Tables of names in docs/reference, which `python docs/site.py` writes, and what the site shows in their place.

In a checkout a table says where each name is and what it is, in a clause; in the site, its whole documentation follows.
"""

import ast
import re
from functools import cache
from pathlib import Path
from typing import Any

import griffe
import typer

from tokenfeed import errors
from tokenfeed.cli import app

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
REFERENCE = ROOT / "docs" / "reference"
COMMANDS = typer.main.get_command(app).commands
RECORDS = ("decisions/", "benchmarks/", "reference/", "reliability")

TABLE = re.compile(r"^\| \| \|\n\|---\|---\|\n((?:\| \[`.*\|\n)+)", re.MULTILINE)
NAME = re.compile(r"^\| \[`([\w. -]+)`\]", re.MULTILINE)
TREE = re.compile(r"(?<=<!-- errors -->\n\n)```text\n.*?```\n", re.DOTALL)

FUNCTIONS = {"tokenfeed.prepare": "tokenfeed.preparation.prepare.prepare"}
"""Where griffe takes a module for the function of its name."""
BARE = "inherited_members: false, members: []"
OPTIONS = {
    "tokenfeed.Loader": "members: [state_dict, load_state_dict, amend, resize, skip_to, steps_per_epoch, stats, close]",
    "tokenfeed.Store": "inherited_members: [num_items, columns, spans, shards, tokenizer, provenance, identity, "
    "version, versions, paths]",
    "tokenfeed.plan.mixing.Mixture": "members: [budget]",
    "tokenfeed.preparation.Characters": BARE,
    "tokenfeed.store.batch.HostBatch": "inherited_members: false, members: [span_numbers, offsets, payloads, part]",
    "tokenfeed.store.documents.Documents": BARE,
    "tokenfeed.store.forms.Arrays": "inherited_members: false",
    "tokenfeed.store.packed.Packed": BARE,
    "tokenfeed.store.spans.BatchSpans": "inherited_members: false, "
    "members: [span_numbers, cu_seqlens, position_ids, document_ids]",
    "tokenfeed.store.subset.Subset": BARE,
    "tokenfeed.store.view.View": "members: [read, unread, lengths, num_targets, mean_length, locate, samples_touching, "
    "seen, unseen, identity, tokenizer, columns, spec]",
    "tokenfeed.store.windows.Windows": BARE,
    "tokenfeed.text.Chat": BARE,
    "tokenfeed.text.ChatTemplate": "members: [load, render]",
    "tokenfeed.text.TextFeed": "members: [state_dict, load_state_dict, counts, stats, close]",
    "tokenfeed.text.TextFiles": "members: [find, documents, iter_row_groups]",
}
"""What is left out of the documentation of a name: plumbing, and what another name has."""


def write_tables(page: str) -> str:
    """A page of the reference, as the source has it now. Which names are on it is said there alone."""

    def write(found: re.Match[str]) -> str:
        return "".join(["| | |\n|---|---|\n", *map(_row_of, NAME.findall(found[1]))])

    return TREE.sub(lambda _: describe_errors() + "\n", TABLE.sub(write, page))


def _row_of(name: str) -> str:
    if name.startswith("tokenfeed "):
        word = name.removeprefix("tokenfeed ")
        path, text = SOURCE / "tokenfeed" / "cli" / f"{word.replace('-', '_')}.py", COMMANDS[word].help
    else:
        found = find(name)
        path, text = found.filepath, found.docstring.value if found.docstring else ""
    (clause,) = re.findall(r"\A(.*?)(?:\.?\s*\Z|(?:[.:;]|, such as)\s)", _cell(text.split("\n\n")[0]) + " ")
    return f"| [`{name}`]({Path('../..') / path.relative_to(ROOT)}) | {clause} |\n"


@cache
def _load() -> Any:
    return griffe.load("tokenfeed", search_paths=[SOURCE])


def find(name: str) -> Any:
    """What a name stands for, in the source."""
    found = _load()[FUNCTIONS.get(name, name).removeprefix("tokenfeed.")]
    return found.final_target if found.is_alias else found


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Words that only tests read go; tables of names become their documentation. Guides are found first."""
    page.meta["search"] = {"boost": 0.3 if page.file.src_uri.startswith(RECORDS) else 2}
    markdown = re.sub(r"^( *```\w+) needs=\w+$", r"\1", markdown, flags=re.MULTILINE)
    if not page.file.src_uri.startswith("reference/"):
        return markdown
    markdown = re.sub(r"<!-- names of ([\w.]+) -->", lambda found: describe_names(list_names(found[1]), 2), markdown)

    def describe(found: re.Match[str]) -> str:
        names = NAME.findall(found[1])
        if names[0].startswith("tokenfeed "):
            return describe_commands()
        return describe_names(names, 3 if "\n## " in markdown[: found.start()] else 2)

    return TABLE.sub(describe, markdown)


def list_names(module: str) -> list[str]:
    """What a module exports; without importing it, which takes seconds where it is torch's."""
    path = SOURCE.joinpath(*module.split("."))
    text = (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text()
    found = re.search(r"^__all__ = (\[.*?\])$", text, re.DOTALL | re.MULTILINE)
    assert found is not None, module
    return [f"{module}.{name}" for name in ast.literal_eval(found[1])]


def describe_names(names: list[str], level: int) -> str:
    """For mkdocstrings."""
    parts = []
    for name in names:
        options = f"heading_level: {level}, show_attribute_values: false, {OPTIONS.get(name, '')}"
        parts += [f"::: {FUNCTIONS.get(name, name)}\n    options: {{{options}}}"]
    return "\n\n".join(parts) + "\n"


def describe_errors() -> str:
    tree = str(errors.__doc__).split("\n\n", 1)[1].strip()
    return f"```text\n{tree}\n```"


def describe_commands() -> str:
    parts = []
    for name, command in sorted(COMMANDS.items()):
        context = command.make_context(name, [], resilient_parsing=True)
        usage = " ".join(["tokenfeed", name, *command.collect_usage_pieces(context)])
        options = [row for each in command.params if (row := _option(each, context))]
        parts += [f"## tokenfeed {name}", _text(command.help), f"```text\n{usage}\n```"]
        parts += ["\n".join(["| | |", "|---|---|", *options])]
        parts += [f"```text\n{command.epilog.removeprefix('Example: ')}\n```"]
    return "\n\n".join(parts)


def _option(parameter: Any, context: Any) -> str | None:
    record = parameter.get_help_record(context)
    return None if record is None else f"| `{_cell(record[0])}` | {_cell(record[1])} |"


def _text(text: str | None) -> str:
    return re.sub(r"\n\s*\n", "\n\n", re.sub(r"[ \t]+", " ", (text or "").replace("\f", "").replace("\b", ""))).strip()


def _cell(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|")


if __name__ == "__main__":
    for path in REFERENCE.glob("*.md"):
        path.write_text(write_tables(path.read_text()))
