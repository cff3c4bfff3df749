"""Engines: libraries that turn text into tokens. All give the same tokens; they differ in speed and memory.

fastokens   3 to 6 times as fast as tiktoken, any pattern, made exact (see there); the default if it is installed
tiktoken    the reference, always installed
gigatoken   used only if named: the fastest for the patterns it knows (gpt2, gpt4, gpt4o), but its Unicode tables differ
            from tiktoken's for recently assigned code points, and its caches grow without limit
"""

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Protocol

from tokenfeed.errors import ArgumentError, DependencyError
from tokenfeed.text.tokenizer.engines.workers import Encoded
from tokenfeed.text.tokenizer.vocabulary import Vocabulary

__all__ = ["ENGINES", "TokenizerEngine", "choose_engine", "make_engine"]

ENGINES = ("fastokens", "tiktoken", "gigatoken")

_LONGEST_TOKEN = 2048  # fastokens takes 0.4 s to load a token of 2,048 bytes, 6 s for 8,192, and fails from 65,536 on


class TokenizerEngine(Protocol):
    """One vocabulary, ready to encode. Safe to call from several threads, and in a process forked from this one."""

    @property
    def name(self) -> str: ...

    @property
    def is_parallel(self) -> bool:
        """Whether it divides work among threads itself, better than several calls at once would."""

    def encode(self, texts: Sequence[str], threads: int, /) -> Encoded:
        """The tokens of all texts one after the other, and the offset of each text's first token, plus the end.

        Special tokens written out in a text are ordinary text. Releases the GIL while encoding. The texts come from
        `pieces.py`; surrogates raise UnicodeEncodeError or TypeError.
        """


def choose_engine(vocabulary: Vocabulary, name: str | None = None) -> str:
    """The given name, checked; by default fastokens if it is installed, else tiktoken.

    The default is also tiktoken for a vocabulary with tokens of more than 2,048 bytes, which fastokens loads slowly.
    """
    if name is None:
        is_short = max(map(len, vocabulary.ranks)) <= _LONGEST_TOKEN
        return "fastokens" if is_short and find_spec("fastokens") else "tiktoken"
    if name not in ENGINES:
        raise ArgumentError(f"there is no engine {name!r}; choose one of {', '.join(ENGINES)}, or leave engine out")
    if not find_spec(name):
        package = "'tokenfeed[text]'" if name == "fastokens" else name
        raise DependencyError(f"engine {name!r} is not installed: pip install {package}, or leave engine out")
    return name


def make_engine(vocabulary: Vocabulary, name: str | None = None) -> TokenizerEngine:
    """The engine of that name, or the default one. Imports the library and takes tens of milliseconds."""
    name = choose_engine(vocabulary, name)
    if name == "fastokens":
        from tokenfeed.text.tokenizer.engines.fastokens import Fastokens

        return Fastokens(vocabulary)
    if name == "gigatoken":
        from tokenfeed.text.tokenizer.engines.gigatoken import Gigatoken

        return Gigatoken(vocabulary)
    from tokenfeed.text.tokenizer.engines.tiktoken import Tiktoken

    return Tiktoken(vocabulary)
