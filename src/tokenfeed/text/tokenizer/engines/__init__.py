"""Engines: libraries that turn text into tokens. All give the same tokens; they differ in speed and memory.

fastokens   made exact (see there), takes any pattern, 3 to 6 times as fast as tiktoken; the default where installed
tiktoken    the reference, always there
gigatoken   by name only: the fastest where it knows the pattern (gpt2, gpt4, gpt4o), but its Unicode tables differ from
            tiktoken's for code points assigned lately, and its caches grow without end
"""

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tokenfeed.errors import ArgumentError
from tokenfeed.text.tokenizer.vocabulary import Vocabulary

__all__ = ["ENGINES", "Engine", "choose_engine", "make_engine"]

ENGINES = {"fastokens": "Fastokens", "tiktoken": "Tiktoken", "gigatoken": "Gigatoken"}

_LONGEST_TOKEN = 2048  # loading takes 0.4 s for one of 2,048 bytes, 6 s for one of 8,192; from 65,536 on it fails


class Engine(Protocol):
    """One vocabulary, ready to encode. Safe to call from several threads, and in a process forked from this one."""

    @property
    def name(self) -> str: ...

    @property
    def is_parallel(self) -> bool:
        """Whether it divides work among threads by itself, better than several calls at once would."""

    def encode(self, texts: Sequence[str], threads: int, /) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]:
        """The tokens of all texts one behind the other, and where each text's begin, plus the end.

        Special tokens written out in a text are ordinary text. The GIL is free while texts are encoded. Texts are as
        `pieces.py` lets them through; surrogates raise UnicodeEncodeError or TypeError.
        """


def choose_engine(vocabulary: Vocabulary, name: str | None = None) -> str:
    """The name itself, or that of the default: fastokens where it is installed, else tiktoken.

    tiktoken as well for a vocabulary with tokens of more than 2,048 bytes, which fastokens takes long to load.
    """
    if name is None:
        is_short = max(map(len, vocabulary.ranks)) <= _LONGEST_TOKEN
        return "fastokens" if is_short and find_spec("fastokens") else "tiktoken"
    if name not in ENGINES:
        raise ArgumentError(f"no engine is called {name!r}; there are {', '.join(ENGINES)}")
    if not find_spec(name):
        extra = "'tokenfeed[text]'" if name == "fastokens" else name
        raise ArgumentError(f"engine {name!r} is not installed; pip install {extra}, or leave engine out")
    return name


def make_engine(vocabulary: Vocabulary, name: str | None = None) -> Engine:
    """The engine of that name, or the default one. Takes some tens of milliseconds, and imports the library."""
    name = choose_engine(vocabulary, name)
    made: Engine = getattr(import_module(f"tokenfeed.text.tokenizer.engines.{name}"), ENGINES[name])(vocabulary)
    return made
