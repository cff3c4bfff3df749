"""`curriculum`: the samples of a view from easy to hard, by a key of each: a view, and an order in buckets of it."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from tokenfeed.errors import ArgumentError, MissingError, PlanMismatchError
from tokenfeed.kernels.checksum import checksum
from tokenfeed.store.numbers import slices
from tokenfeed.store.spec import DocumentsSpec
from tokenfeed.store.subset import Listed, Selection, Slice, Subset, SubsetSpec
from tokenfeed.store.view import View
from tokenfeed.types import Array, Ints

__all__ = ["CurriculumSpec", "curriculum"]


@dataclass(frozen=True)
class CurriculumSpec(SubsetSpec):
    """The samples of a view, sorted by a key, to be shuffled in buckets."""

    kind: ClassVar[str] = "curriculum"

    key: str
    """`length`, `payload.` and a field, the path of an .npy file, or nothing for an array that was in memory."""
    digest: str
    """Checksum of the sorted order."""
    buckets: int
    rising: bool = True
    epochs: int = 0
    """Epochs in this order, before those in which everything is shuffled with everything; 0 for all."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.buckets < 1 or self.epochs < 0:
            raise ArgumentError(f"{self.buckets} buckets, {self.epochs} epochs; there is at least 1 bucket")

    @property
    def curriculum(self) -> tuple[int, int] | None:
        return self.buckets, self.epochs

    def select(self, view: View) -> Selection:
        if not self.key:
            raise ArgumentError(
                f"{self}: its keys were an array in memory, which is not kept. Give the view itself, "
                "stores={name: curriculum(view, array)}; or keep keys as a file, curriculum(view, 'keys.npy')"
            )
        order = _sort(_find_keys(view, self.key), rising=self.rising)
        if _digest(order) != self.digest:
            raise PlanMismatchError(f"{self}: keys of {self.key!r} sort the samples in another order now")
        return _selection(order)

    def __str__(self) -> str:
        order = "" if self.rising else " falling"
        epochs = f" in {self.epochs} epochs" if self.epochs else ""
        return f"{self.base} by {self.key or 'array'}{order} {self.digest[:8]} in {self.buckets}{epochs}"


def curriculum(view: View, key: Any, *, buckets: int = 16, rising: bool = True, epochs: int | None = None) -> Subset:
    """The samples of a view in an order by `key`: a view that a `Loader`, or `mix`, takes as any other.

    `key` is "length"; "payload.score", a field of the payloads of documents; or a number for each sample, as an array
    or as the path of an .npy file. Samples are sorted by it, and cut into `buckets` of equal size. An epoch goes
    through the buckets one after the other, each in a random order of its own; with `epochs`, only the first ones do,
    and then everything is shuffled with everything. `rising=False` begins with the largest.

        loader = Loader(curriculum(store.documents(), "length", buckets=32), tokens=65536)
        mix({"web": (curriculum(web, "payload.score", rising=False), 0.7), "code": (code, 0.3)})

    Keys are computed once, when the view is made (payloads: all are read); the sorted order takes 4 bytes a sample in
    memory, 8 beyond 2**31 samples, and none where samples are sorted already.
    """
    if not isinstance(view, View):
        raise ArgumentError(f"a curriculum is of a view, such as store.documents(), not of {view!r:.80}")
    for name, each in (("buckets", buckets), ("epochs", 1 if epochs is None else epochs)):
        if type(each) is not int or each < 1:
            raise ArgumentError(f"{name} is {each!r}; expected a whole number of at least 1")
    if buckets > max(1, len(view)):
        raise ArgumentError(f"{buckets} buckets of {len(view):,} samples: there are fewer samples than buckets")
    is_named = isinstance(key, str | Path)
    name = str(key) if is_named else ""
    order = _sort(_find_keys(view, name) if is_named else _check(np.asarray(key), view, "the array"), rising=rising)
    spec = CurriculumSpec(view.spec, name, _digest(order), buckets, rising, epochs or 0)
    return Subset(view, _selection(order), spec)


def _find_keys(view: View, key: str) -> Array:
    if key == "length":
        lengths = [view.lengths(numbers) for numbers in slices(len(view))]
        return np.concatenate([np.empty(0, np.int64), *lengths])
    if key.startswith("payload."):
        return _check(_read_payloads(view, key.removeprefix("payload.")), view, key)
    if key.endswith(".npy"):
        try:
            keys = np.load(key, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise MissingError(f"keys of a curriculum are to be in {key}: {error}") from error
        return _check(keys, view, key)
    raise ArgumentError(f"key is {key!r}; expected 'length', 'payload.' and a field, an array, or the path of a .npy")


def _read_payloads(view: View, field: str) -> Array:
    table = view.span_table
    if table is None or not isinstance(view.spec.unit, DocumentsSpec):
        raise ArgumentError(
            f"key is 'payload.{field}', and samples are {view.spec}: only documents have one payload each. Give a "
            "number for each sample as an array"
        )
    keys = np.empty(len(view))
    for numbers in slices(len(view)):
        documents = view.rows(numbers).indices
        data, starts, ends = table.read(documents)
        for row, (number, start, end) in enumerate(zip(documents.tolist(), starts, ends, strict=True)):
            payload = table.decode(data.data[start:end], number) if start >= 0 else None
            if not isinstance(payload, dict) or field not in payload:
                there = ", ".join(map(str, payload)) if isinstance(payload, dict) else repr(payload)[:80]
                raise ArgumentError(
                    f"document {number} has no field {field!r} to be sorted by; its payload has {there}"
                )
            value = payload[field]
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise ArgumentError(f"{field} of document {number} is {value!r}; expected a finite number")
            keys[numbers[row]] = value
    return keys


def _check(keys: Array, view: View, told: str) -> Array:
    if keys.shape != (len(view),) or keys.dtype.kind not in "iuf":
        raise ArgumentError(
            f"{told} is {keys.dtype} of shape {keys.shape}; expected one number for each of {len(view):,} samples"
        )
    if keys.dtype.kind == "f" and not np.isfinite(keys).all():
        wrong = int(np.flatnonzero(~np.isfinite(keys))[0])
        raise ArgumentError(f"the key of sample {wrong} is {keys[wrong]}; expected finite numbers, to be sorted by")
    return keys


def _sort(keys: Array, *, rising: bool) -> Ints:
    order = np.argsort(keys, kind="stable")
    order = order if rising else order[::-1]
    return order.astype(np.int32 if order.size < 1 << 31 else np.int64)


def _digest(order: Ints) -> str:
    return checksum(np.ascontiguousarray(order, np.int64).tobytes())


def _selection(order: Ints) -> Selection:
    is_sorted = all(bool((order[numbers] == numbers).all()) for numbers in slices(order.size))
    return Slice(0, order.size) if is_sorted else Listed(order)
