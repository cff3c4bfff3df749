import os
import platform
from collections.abc import Iterator
from importlib import metadata
from typing import NamedTuple

import typer
from rich.table import Table

from tokenfeed.cli.console import console, print_json, styled, tell, tell_done
from tokenfeed.cli.options import Json
from tokenfeed.version import __version__

_MARKS = {"ok": ("✓", "green"), "note": ("·", "yellow"), "problem": ("✗", "red")}
_NEEDED = ("numpy", "numba", "msgpack")
_OPTIONAL = {
    "pyarrow": ("text", "reads Parquet"),
    "orjson": ("text", "reads JSONL faster"),
    "tiktoken": ("text", "tokenises by unusual patterns"),
    "rustbpe": ("text", "trains vocabularies"),
    "obstore": ("remote", "reads object stores, HTTP, and downloads"),
    "huggingface_hub": ("hub", "datasets and tokenizers of the Hugging Face hub"),
    "torch": ("torch", "batches as tensors"),
    "jax": ("jax", "batches as global arrays"),
    "ray": ("ray", "prepare on a cluster"),
    "tokenizers": ("tokenizers", "Hugging Face tokenizers that are not plain byte-level BPE"),
    "sentencepiece": ("tokenizers", "tokenizers of SentencePiece"),
    "psutil": ("ui", "memory of the process on systems without /proc"),
}
"""By package: the extra that brings it, and what it does."""


class Check(NamedTuple):
    name: str
    status: str
    """`ok`; `note`, which may matter; or `problem`, which stops tokenfeed from working here."""
    found: str
    advice: str = ""


def check_all() -> Iterator[Check]:
    # Imported here because they are slow, and other commands do not need them.
    from tokenfeed.kernels import items
    from tokenfeed.text.tokenizer.engines import available_cores

    yield Check("tokenfeed", "ok", __version__)
    yield Check("system", "ok", f"{platform.system()} {platform.release()}, {platform.machine()}")
    yield Check("python", "ok", platform.python_version())
    for name in (*_NEEDED, *_OPTIONAL):
        yield _check_package(name)
    cache = items.read_windows.stats.cache_path
    if cache is None:
        advice = "Set NUMBA_CACHE_DIR to a writable folder, so that they are compiled only once."
        yield Check("kernels", "note", "compiled in every process", advice)
    else:
        yield Check("kernels", "ok", f"compiled once and kept in {cache}")
    yield Check("cores", "ok", f"{available_cores()} usable of {os.cpu_count()}")


def _check_package(name: str) -> Check:
    try:
        return Check(name, "ok", metadata.version(name))
    except metadata.PackageNotFoundError:
        if name in _NEEDED:
            return Check(name, "problem", "not installed", f"pip install {name}, or reinstall tokenfeed.")
        extra, what = _OPTIONAL[name]
        return Check(name, "note", f"not installed ({what})", f"pip install 'tokenfeed[{extra}]', if you need it.")


def command(as_json: Json = False) -> None:
    """Show versions, where kernels are kept, cores, and what is missing. Exit status: 1 if tokenfeed cannot work."""
    checks = list(check_all())
    problems = [check.name for check in checks if check.status == "problem"]
    if as_json:
        print_json({"ok": not problems, "checks": [check._asdict() for check in checks]})
        raise typer.Exit(1 if problems else 0)
    table = Table.grid(padding=(0, 1))
    for check in checks:
        told = styled(check.found, (f"\n{check.advice}" if check.advice else "", "dim"))
        table.add_row(styled(_MARKS[check.status]), styled(check.name, style="bold"), told)
    console.print(table)
    if problems:
        tell(f"tokenfeed does not work here: {', '.join(problems)}", style="red")
        raise typer.Exit(1)
    tell_done("tokenfeed works here")
