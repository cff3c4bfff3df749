"""A prepared store's own records: the recipe and the inputs, and every slice that is done."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tokenfeed.errors import ArgumentError, StateError
from tokenfeed.preparation.inputs import InputFile, Slice
from tokenfeed.text.tokenizer.tokenizer import name_tokens

__all__ = [
    "SHARD_BYTES",
    "Counts",
    "PreparePlan",
    "Recipe",
    "Record",
    "choose_slice_bytes",
    "slice_name",
]

_SMALLEST_SLICE, _LARGEST_SLICE = 8 << 20, 256 << 20
_WANTED_SLICES = 512
SHARD_BYTES = 1 << 30
_LARGEST_NUMBER = 999_999


@dataclass(frozen=True)
class Recipe:
    """Settings. Two runs with equal recipes and equal inputs make the same bytes, in whatever order they work."""

    tokenizer: str | None
    """Digest of the tokenizer; None for tokens of one that is not known."""
    dtype: str
    bos: int | None
    """Token before every document."""
    eos: int | None
    """Token after every document."""
    text_column: str = "text"
    """Column of the text, or of the tokens."""
    num_ids: int | None = None
    """For inputs that are tokenised already, how many ids there are; None for text."""
    keep: tuple[str, ...] = ()
    """Columns that become the payload of a document."""
    val: float = 0.001
    """Share of the documents of `train` files that go to `val`, chosen by a hash of their text."""
    map: str | None = None
    """Name of the map function, and a digest of its source."""
    slice_bytes: int = _SMALLEST_SLICE
    shard_bytes: int = SHARD_BYTES
    chat: str | None = None
    """For conversations: the template, the layout, and the messages that are learned."""

    @property
    def identity(self) -> str | None:
        """What the store records as its tokenizer: the separators too, unless the inputs are tokens as they are, or
        conversations, which their template begins and ends."""
        as_they_are = (self.num_ids is not None or self.chat is not None) and self.bos is self.eos is None
        return (
            self.tokenizer if self.tokenizer is None or as_they_are else name_tokens(self.tokenizer, self.bos, self.eos)
        )

    def __post_init__(self) -> None:
        for name, size in (("slice_bytes", self.slice_bytes), ("shard_bytes", self.shard_bytes)):
            if size < 1:
                raise ArgumentError(f"{name} is {size}; it must be at least 1")
        if len(set(self.keep)) < len(self.keep):
            raise ArgumentError(f"keep names a column twice: {list(self.keep)}")


def choose_slice_bytes(input_bytes: int) -> int:
    """A power of two from 8 MiB to 256 MiB.

    Some hundreds of slices let all workers end at about the same time; a store of terabytes should not have a million.
    """
    size = _SMALLEST_SLICE
    while size < _LARGEST_SLICE and size * _WANTED_SLICES < input_bytes:
        size *= 2
    return size


@dataclass(frozen=True)
class PreparePlan:
    """The settings and the inputs of a store."""

    recipe: Recipe
    inputs: Sequence[InputFile]

    def to_json(self) -> bytes:
        inputs = [file.fields for file in self.inputs]
        fields = {"format": "tokenfeed-prepare", "version": 1, "recipe": asdict(self.recipe), "inputs": inputs}
        return (json.dumps(fields, indent=1) + "\n").encode()

    @classmethod
    def from_json(cls, data: bytes, where: str) -> "PreparePlan":
        try:
            described = json.loads(data)
            if (described["format"], described["version"]) != ("tokenfeed-prepare", 1):
                raise ValueError(f"it has format {described['format']!r} and version {described['version']!r}")
            recipe: dict[str, Any] = {
                name: tuple(value) if isinstance(value, list) else value for name, value in described["recipe"].items()
            }
            return cls(Recipe(**recipe), [InputFile("", **one) for one in described["inputs"]])
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise StateError(
                f"{where} is not a plan that this tokenfeed can read ({type(error).__name__}: {error}). Prepare into a "
                "new store, or upgrade."
            ) from error


@dataclass
class Counts:
    """Numbers of what was read and made. All of them follow from the inputs and the recipe."""

    documents: int = 0
    tokens: int = 0
    characters: int = 0
    input_bytes: int = 0
    """Bytes of the files as they are stored."""
    val_documents: int = 0
    """Documents in the split `val`."""
    val_tokens: int = 0
    test_documents: int = 0
    test_tokens: int = 0
    empty: int = 0
    """Documents with an empty text."""
    malformed: int = 0
    """Lines or rows left out because they could not be understood."""
    null: int = 0
    """Lines or rows left out because their text is null."""
    dropped: int = 0
    """Documents that the map function left out."""

    def by_split(self) -> dict[str, tuple[int, int]]:
        """Documents and tokens of train, val and test."""
        train = self.documents - self.val_documents - self.test_documents
        held_out = {"val": (self.val_documents, self.val_tokens), "test": (self.test_documents, self.test_tokens)}
        return {"train": (train, self.tokens - self.val_tokens - self.test_tokens), **held_out}

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(**{name: value + vars(other)[name] for name, value in vars(self).items()})


@dataclass
class Record:
    """A slice that is done."""

    slice: Slice
    input_digest: str
    shards: dict[str, str] = field(default_factory=dict)
    """Names of its shards, with the checksums of their `shard.json`."""
    counts: Counts = field(default_factory=Counts)
    problems: list[str] = field(default_factory=list)
    """Lines and rows that were left out, in words: the first few."""

    def to_json(self) -> bytes:
        return (json.dumps(asdict(self)) + "\n").encode()

    @classmethod
    def from_json(cls, data: bytes) -> "Record | None":
        """None for what a power failure left of one: the slice is made again."""
        try:
            described = json.loads(data)
            place, counts = Slice(**described["slice"]), Counts(**described["counts"])
            shards, problems = dict(described["shards"]), list(described["problems"])
            return cls(place, described["input_digest"], shards, counts, problems)
        except (ValueError, TypeError, KeyError, RecursionError):
            return None


def slice_name(place: Slice) -> str:
    """`"000003-000017"`: names sort as inputs do."""
    if max(place.file, place.number) > _LARGEST_NUMBER:
        raise ArgumentError(
            f"slice {place.number} of input {place.file}: there can be {_LARGEST_NUMBER + 1:,} inputs, and as many "
            "slices of each. Choose larger slices, or prepare several stores and combine them."
        )
    return f"{place.file:06d}-{place.number:06d}"
