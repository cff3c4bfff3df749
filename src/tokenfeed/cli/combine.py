from typing import Annotated

import typer

from tokenfeed.cli.console import print_json, tell_done
from tokenfeed.cli.options import Dtype, Eos, Json, NewStore
from tokenfeed.errors import quantity
from tokenfeed.store.resolve import combine
from tokenfeed.store.store import open_store


def command(
    stores: Annotated[list[str], typer.Argument(metavar="STORE...", help="Stores, or token files of other systems.")],
    out: NewStore,
    dtype: Dtype = None,
    eos: Eos = None,
    as_json: Json = False,
) -> None:
    """Make one store of several, one after the other, without a copy: it only names them."""
    combine(stores, out, dtype=dtype, eos=eos)
    store = open_store(out, split="all")
    if as_json:
        print_json({"path": out, "stores": stores, "shards": len(store.shards), "items": store.num_items})
    else:
        size = f"{quantity(len(store.shards), 'shard')}, {quantity(store.num_items, 'item')}"
        tell_done(f"{out} combines {quantity(len(stores), 'store')}: {size}")
