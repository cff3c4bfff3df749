from typing import Annotated

import typer

from tokenfeed.cli.console import print_json, tell_done
from tokenfeed.cli.options import Json
from tokenfeed.errors import quantity
from tokenfeed.store.sealing import load_manifest, seal


def command(
    path: Annotated[str, typer.Argument(metavar="STORE", help="The folder or address of a store.")],
    as_json: Json = False,
) -> None:
    """Complete a store with the shards that are there: for writers with seal=False, or of which one was killed."""
    seal(path)
    shards = load_manifest(path).shards or ()
    items = sum(entry.items for entry in shards)
    if as_json:
        print_json({"path": path, "shards": len(shards), "items": items})
    else:
        tell_done(f"{path} is sealed: {quantity(len(shards), 'shard')}, {quantity(items, 'item')}")
