"""Fill-in-the-middle: `python examples/fill_in_the_middle/collate.py STORE PREFIX SUFFIX MIDDLE`, ids of three tokens.

    a b c d e f  →  PREFIX a b SUFFIX e f MIDDLE c d

Which documents, and where they are cut, follows from the sample's number: a resume gives the same rows, on any ranks.
"""

import sys

import numpy as np

import tokenfeed
from tokenfeed.loader.collate import Padded


def fill_in_the_middle(prefix, suffix, middle, *, rate=0.5, bos=None, seed=0):
    def turn(tokens, sample):
        rng = np.random.default_rng((seed, sample))
        if rng.random() >= rate:
            return tokens
        first = int(len(tokens) > 0 and tokens[0] == bos)
        low, high = np.sort(rng.integers(first, len(tokens) + 1, 2))
        start, before, between, after = np.split(tokens, [first, low, high])
        return np.concatenate([start, [prefix], before, [suffix], after, [middle], between])

    def collate(batch):
        documents = np.split(batch.column("tokens"), batch.offsets[1:-1])
        rows = [turn(*each) for each in zip(documents, batch.samples.tolist(), strict=True)]
        lengths = np.array([len(row) for row in rows])
        mask = np.arange(lengths.max()) < lengths[:, None]
        tokens = np.zeros(mask.shape, np.int64)
        tokens[mask] = np.concatenate(rows)
        return Padded({"tokens": tokens}, lengths, mask)

    return collate


if __name__ == "__main__":
    documents, ids = tokenfeed.open(sys.argv[1]).documents(), map(int, sys.argv[2:])
    print(next(tokenfeed.Loader(documents, 8, collate=fill_in_the_middle(*ids))).data.columns["tokens"])
