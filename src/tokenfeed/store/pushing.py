"""`push`: a store into a repository of the Hugging Face hub, where `tokenfeed.open("hf://owner/name")` reads it."""

from tokenfeed.errors import ArgumentError, NotAStoreError, quantity
from tokenfeed.format.layout import MANIFEST
from tokenfeed.storage import hub
from tokenfeed.storage.folder import PathLike, open_folder
from tokenfeed.store.sealing import load_manifest

__all__ = ["push"]


def push(path: PathLike, address: str, *, message: str | None = None, private: bool | None = None) -> str:
    """Put a local store into a repository `hf://owner/name[@branch][/folder]`, in one commit.

    Returns the address that opens it, in that commit. The repository is made if need be, `private` or not; the token is
    that of HF_TOKEN or `hf auth login`. The store must be sealed, and hold its own data: a combined store is refused.
    Files that the hub has already are not sent again.
    """
    place = hub.repository_of(address)
    folder = open_folder(path)
    if folder.local is None or not folder.exists(MANIFEST):
        raise NotAStoreError(f"{folder} is no store on this machine, and nothing else can be pushed")
    manifest = load_manifest(folder)
    if manifest.stores is not None:
        raise ArgumentError(
            f"{folder} is a combined store, and the hub would not have what it names. Push each store by itself, and "
            "open them as a list"
        )
    if manifest.shards is None:
        raise ArgumentError(f"{folder} is not sealed, and the hub cannot list its shards: call tokenfeed.seal first")
    items = sum(entry.items for entry in manifest.shards)
    what = message or f"{quantity(items, 'item')} in {quantity(len(manifest.shards), 'shard')}"
    commit = hub.push(folder.local, address, message=what, private=private)
    return str(place._replace(revision=commit))
