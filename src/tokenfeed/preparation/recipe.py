"""`Recipe`: the settings that, together with the inputs, decide what a prepared store holds."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, Self

from tokenfeed.errors import ArgumentError
from tokenfeed.text.sources.splitting import is_val

__all__ = ["SHARD_BYTES", "Recipe", "choose_slice_bytes", "choose_split"]

_SMALLEST_SLICE, _LARGEST_SLICE = 8 << 20, 256 << 20
_WANTED_SLICES = 512
SHARD_BYTES = 1 << 30


@dataclass(frozen=True)
class Recipe:
    """Settings. Two runs with equal recipes and equal inputs make the same bytes, in whatever order they work."""

    tokenizer: str
    """Digest of the tokenizer."""
    dtype: str
    bos: int | None
    """Token before every document."""
    eos: int | None
    """Token after every document."""
    text_column: str = "text"
    keep: tuple[str, ...] = ()
    """Columns that become the payload of a document."""
    split: Literal["hash", "file"] | None = "hash"
    val_fraction: float = 0.001
    """Share of the documents that go to `val`, chosen by a hash of their text."""
    split_seed: int = 0
    val_inputs: tuple[int, ...] = ()
    """Numbers of the input files that are `val`."""
    map: str | None = None
    """Name of the map function, and a digest of its source."""
    slice_bytes: int = _SMALLEST_SLICE
    shard_bytes: int = SHARD_BYTES

    def __post_init__(self) -> None:
        if self.split not in ("hash", "file", None):
            raise ArgumentError(f"split is {self.split!r}; it must be 'hash', 'file' or None")
        if not 0 <= self.val_fraction < 1:
            raise ArgumentError(f"val_fraction is {self.val_fraction}; it must be at least 0 and below 1")
        for name, size in (("slice_bytes", self.slice_bytes), ("shard_bytes", self.shard_bytes)):
            if size < 1:
                raise ArgumentError(f"{name} is {size}; it must be at least 1")
        if len(set(self.keep)) < len(self.keep):
            raise ArgumentError(f"keep names a column twice: {list(self.keep)}")

    @property
    def splits(self) -> tuple[str | None, ...]:
        """Names of the splits that documents may go to."""
        return (None,) if self.split is None else ("train", "val")

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, described: Mapping[str, Any]) -> Self:
        known = {field.name for field in fields(cls)}
        values: dict[str, Any] = {}
        for name in known & described.keys():
            values[name] = tuple(described[name]) if isinstance(described[name], list) else described[name]
        return cls(**values)


def choose_slice_bytes(input_bytes: int) -> int:
    """A power of two from 8 MiB to 256 MiB.

    Some hundreds of slices let all workers end at about the same time; a store of terabytes should not have a million.
    """
    size = _SMALLEST_SLICE
    while size < _LARGEST_SLICE and size * _WANTED_SLICES < input_bytes:
        size *= 2
    return size


def choose_split(recipe: Recipe, input_number: int, text: str) -> str | None:
    """The split of a document, by its file or by the first 4,096 characters of its text, and nothing else."""
    if recipe.split is None:
        return None
    if recipe.split == "file":
        return "val" if input_number in recipe.val_inputs else "train"
    return "val" if is_val(text, recipe.val_fraction, recipe.split_seed) else "train"
