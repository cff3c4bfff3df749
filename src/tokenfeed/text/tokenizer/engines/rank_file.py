"""A vocabulary as a file of ranks, for engines that load nothing else."""

import base64
import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tokenfeed.text.tokenizer.vocabulary import Vocabulary

__all__ = ["rank_file", "rank_table"]


@contextlib.contextmanager
def rank_file(vocabulary: Vocabulary) -> Iterator[str]:
    """A temporary file of the ordinary tokens by rank, numbered from 0 without holes."""
    tokens = sorted(vocabulary.ranks, key=vocabulary.ranks.__getitem__)
    lines = [b"%b %d\n" % (base64.b64encode(token), rank) for rank, token in enumerate(tokens)]
    with tempfile.TemporaryDirectory(prefix="tokenfeed-") as folder:
        path = Path(folder, "ranks.tiktoken")
        path.write_bytes(b"".join(lines))
        yield str(path)


def rank_table(vocabulary: Vocabulary) -> npt.NDArray[np.uint32] | None:
    """The ids of the tokens in that file, where they are not the numbers that they have there."""
    ids = np.sort(np.fromiter(vocabulary.ranks.values(), np.uint32, len(vocabulary.ranks)))
    return None if ids[-1] == len(ids) - 1 else ids
