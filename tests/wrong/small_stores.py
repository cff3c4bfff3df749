"""Small stores whose rows tell where they are from, and what tests do with loaders over them."""

import numpy as np

import tokenfeed

__all__ = ["LENGTH", "SIZES", "grow", "load", "mix", "rows_of", "take", "write_growths", "write_sources", "write_store"]

LENGTH = 4
SIZES = {"a": 400, "b": 300, "c": 90}


def write_store(path, size, *, first=0, codec="json"):
    """Windows of a store of `size` documents, each one window long and with its number as payload."""
    with tokenfeed.Writer(path, columns={"tokens": "uint16"}, spans={"documents": codec}) as writer:
        for number in range(size):
            writer.append({"tokens": first + LENGTH * number + np.arange(LENGTH)}, documents=number)
        writer.append({"tokens": [0]}, documents=None)  # windows have a target more
    return tokenfeed.open(path, codecs=() if isinstance(codec, str) else [codec]).windows(LENGTH)


def write_sources(folder):
    """The windows of three sources, a, b and c: item 5,000 · source + 4 · document + place."""
    return {name: write_store(folder / name, size, first=5000 * n) for n, (name, size) in enumerate(SIZES.items())}


def write_growths(path):
    """A source of 120 documents, and what `grow` takes one after the other: three documents each."""
    views = [write_store(path / "first", 120)]
    for number in range(4):
        with tokenfeed.Writer(path / f"{number}", columns={"tokens": "uint16"}, spans={"documents": "json"}) as writer:
            writer.append({"tokens": 9000 + 100 * number + np.arange(3 * LENGTH + 1)}, documents=number)
        views.append(tokenfeed.open(path / f"{number}").windows(LENGTH))
    return views


def grow(loader, name, more):
    """From the next batch on, a source has more rows; `more` is one of `write_growths`."""
    loader.amend(grow={name: more})


def mix(views, **weights):
    return tokenfeed.mix({name: (views[name], weight) for name, weight in weights.items()})


def load(rows, batch_size=4, **options):
    return tokenfeed.Loader(rows, batch_size, **{"prefetch": 0, "rank": 0, "world_size": 1, **options})


def take(loader, stop):
    """Names of the sources of the next rows, until `stop` samples of the run were delivered."""
    drawn = []
    while loader.state_dict()["samples"] < stop:
        batch = next(loader)
        drawn += [batch.source_names[number] for number in batch.sources.tolist()]
    return drawn


def rows_of(batch):
    """What tells rows apart, where they come from, and what is learned of them."""
    mask = np.ones(batch.targets.shape, np.bool_) if batch.loss_mask is None else batch.loss_mask
    columns = batch.samples, batch.epochs, batch.column("tokens")[:, 0], mask.sum(axis=1)
    return list(zip(*(column.tolist() for column in columns), strict=True))
