"""The plan of a prepared store, and the records of its slices that are done."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields

from tokenfeed.errors import ArgumentError, StateError
from tokenfeed.preparation.inputs import InputFile, Slice
from tokenfeed.preparation.recipe import Recipe

__all__ = ["Counts", "PreparePlan", "Record", "slice_name"]

_LARGEST_NUMBER = 999_999


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
    empty: int = 0
    """Documents with an empty text."""
    malformed: int = 0
    """Lines or rows left out because they could not be understood."""
    null: int = 0
    """Lines or rows left out because their text is null."""
    dropped: int = 0
    """Documents that the map function left out."""

    def add(self, other: "Counts") -> None:
        for name in (one.name for one in fields(self)):
            setattr(self, name, getattr(self, name) + getattr(other, name))


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
            return cls(
                Slice(**described["slice"]),
                described["input_digest"],
                dict(described["shards"]),
                Counts(**described["counts"]),
                list(described["problems"]),
            )
        except (ValueError, TypeError, KeyError, RecursionError):
            return None


@dataclass(frozen=True)
class PreparePlan:
    """The settings and the inputs of a store."""

    recipe: Recipe
    inputs: Sequence[InputFile]

    def to_json(self) -> bytes:
        inputs = [{"name": file.name, "size": file.size, "digest": file.digest} for file in self.inputs]
        recipe = json.dumps(self.recipe.to_json(), indent=1)
        lines = ",\n".join(json.dumps(one) for one in inputs)
        head = f'{{\n"format": "tokenfeed-prepare", "version": 1,\n"recipe": {recipe},\n"inputs": [\n{lines}\n]\n}}\n'
        return head.encode()

    @classmethod
    def from_json(cls, data: bytes, where: str) -> "PreparePlan":
        try:
            described = json.loads(data)
            if (described["format"], described["version"]) != ("tokenfeed-prepare", 1):
                raise ValueError(f"it has format {described['format']!r} and version {described['version']!r}")
            return cls(Recipe.from_json(described["recipe"]), [InputFile("", **one) for one in described["inputs"]])
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise StateError(
                f"{where} is not a plan that this tokenfeed can read ({type(error).__name__}: {error}). Prepare into a "
                "new store, or upgrade."
            ) from error


def slice_name(place: Slice) -> str:
    """`"000003-000017"`: names sort as inputs do."""
    if max(place.file, place.number) > _LARGEST_NUMBER:
        raise ArgumentError(
            f"slice {place.number} of input {place.file}: there can be {_LARGEST_NUMBER + 1:,} inputs, and as many "
            "slices of each. Choose larger slices, or prepare several stores and combine them."
        )
    return f"{place.file:06d}-{place.number:06d}"
