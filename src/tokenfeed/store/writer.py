"""`Writer`: writes items and spans into a store, shard by shard. Any number of writers may share a store."""

import contextlib
import json
import secrets
from collections.abc import Mapping, Sequence, Sized
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Literal, Self

import numpy as np

from tokenfeed.errors import ArgumentError, FitError, FormatError, quantity
from tokenfeed.format.codecs import Codec, resolve_codec
from tokenfeed.format.layout import MANIFEST, check_name
from tokenfeed.format.manifest import Column, Manifest
from tokenfeed.format.npy import build_header, check_dtype, descr_from_json, descr_to_json
from tokenfeed.storage.folder import PathLike, RemoteFolder, open_folder
from tokenfeed.storage.lease import Lease
from tokenfeed.storage.locks import FileLock
from tokenfeed.store.numbers import as_indices
from tokenfeed.store.sealing import differences, list_shards, load_manifest, seal, unseal
from tokenfeed.store.shard_writer import ShardWriter, Spans, is_abandoned
from tokenfeed.types import Array

__all__ = ["Writer", "fit"]

_SHARD_BYTES = 1 << 30
_LONGEST_NAME = 190
_PATIENCE_SECONDS = 10.0


class Writer:
    """Writes its own shards into a store, and creates the store if there is none.

    A shard is committed once it holds `shard_bytes`; from then on readers see it. A document is never split over two
    shards. A crash loses at most the shard being written. So does an error while `append` writes, Ctrl-C included: a
    note on the error says which documents are lost, and the next `append` begins another shard. Writers do not wait for
    each other: each owns its shards, in any process and on any host. The last one to close seals the store, which
    completes it.

    The same holds in an object store (`s3://…`). There a shard is first written to temporary files on this machine
    (TMPDIR, which needs room for it), and uploaded when it is committed. They have no names: a killed process leaves
    none of them.

    `columns` gives a NumPy dtype for each column, such as `("uint8", (3, 32, 32))` for one with an inner shape. `spans`
    gives a codec for each span table, by name or as an object, or None for spans without payloads.
    """

    def __init__(
        self,
        path: PathLike,
        *,
        mode: Literal["x", "append"] = "x",
        columns: Mapping[str, Any],
        spans: Mapping[str, str | Codec | None] | None = None,
        split: str | None = None,
        name: str | None = None,
        shard_bytes: int = _SHARD_BYTES,
        tokenizer: str | None = None,
        provenance: Mapping[str, Any] | None = None,
        sync: bool = True,
        seal: bool = True,
        redo: bool = False,
    ) -> None:
        """`mode="x"` refuses a store that has shards, so that running a script again does not write its data twice,
        whether it ended well or was killed. Only where other writers are at work on a local store does it join them; in
        an object store, where that cannot be told, join by `"append"`, which adds to what is there.

        `name` is the prefix of this writer's shard names, by which shards are ordered. One live writer has it at a
        time: a second one is refused. After a kill it is free at once, in an object store after a minute.

        `seal=False` never touches the manifest: for many writers on an unsealed store that is sealed once, after all
        of them are done; those that begin when others have ended say `mode="append"`.

        `redo=True` makes shards of this `name` again that may be there already, for work that is divided by names and
        begun again after a crash; whoever does that must make the same bytes.

        `sync=False` leaves it to the operating system when bytes reach the disk: a crash of the process still loses no
        committed shard, but a power cut may.
        """
        if shard_bytes < 1:
            raise ArgumentError(f"shard_bytes is {shard_bytes}; expected 1 or more")
        self._folder = open_folder(path)
        self._columns = {
            check_name("column", key, where=str(self._folder)): _column(key, value) for key, value in columns.items()
        }
        self._codecs = {
            check_name("span table", key, where="spans"): None if codec is None else resolve_codec(codec, what=key)
            for key, codec in (spans or {}).items()
        }
        if not self._columns and not self._codecs:
            raise ArgumentError("a store needs at least one column or span table")
        self._split = None if split is None else check_name("split", split, where=str(self._folder))
        if split == "all":
            raise ArgumentError('split="all" stands for every split; choose another name, such as "train"')
        is_shared = name is not None
        if name is None:  # one that sorts by time, so that a store grows at its end
            name = f"{datetime.now(UTC):%Y%m%dT%H%M%S.%f}-{secrets.token_hex(4)}"
        self._name = check_name("shard", name, where=str(self._folder))
        if len(name) > _LONGEST_NAME:
            raise ArgumentError(
                f"name has {len(name)} characters, and names of shards add a number to it; expected at most "
                f"{_LONGEST_NAME}"
            )
        self._shard_bytes = shard_bytes
        self._sync = sync
        self._seals = seal
        self._redo = redo
        self.shards: dict[str, str] = {}
        """Names of the shards that it has committed, with the checksums of their `shard.json`."""
        self._num_documents = 0  # in committed shards
        self._shard: ShardWriter | None = None
        self._closed = False
        self._lock: FileLock | None = None
        self._lease: Lease | None = None
        codec_names = {key: None if codec is None else codec.name for key, codec in self._codecs.items()}
        self._create(Manifest(self._columns, codec_names, tokenizer, dict(provenance or {})), mode)
        if is_shared and not redo and isinstance(self._folder, RemoteFolder):
            self._lease = Lease(self._folder, name)

    def _create(self, manifest: Manifest, mode: str) -> None:
        if mode not in ("x", "append"):
            raise ArgumentError(f"mode is {mode!r}; expected 'x' or 'append'")
        self._folder.make()
        self._lock = None if self._folder.local is None else FileLock(self._folder.local)
        if self._is_left_over() and self._is_left_over():  # again: another writer may just have made the manifest
            raise ArgumentError(
                f"{self._folder} holds shards and no {MANIFEST}, as a store that was damaged does. Use a new folder"
            )
        if self._folder.create(MANIFEST, manifest.to_json().encode(), sync=self._sync):
            self._join()
            return
        existing = load_manifest(self._folder)
        if existing.stores is not None:
            raise ArgumentError(f"{self._folder} is a combined store; write into one of the stores it combines")
        ours = replace(manifest, tokenizer=manifest.tokenizer or existing.tokenizer)
        for what, there, here in differences(existing, ours):
            raise ArgumentError(
                f"{self._folder} has {what} {there}; this writer has {here}. Use the same, or a new folder"
            )
        if mode == "x" and existing.shards:
            size = quantity(sum(entry.items for entry in existing.shards), "item")
            raise ArgumentError(
                f'{self._folder} is a complete store of {size}. mode="append" adds to it; remove it to write it again'
            )
        if mode == "x":
            self._refuse_remains()
        self._join()

    def _join(self) -> None:
        """Tell others that a writer is at work."""
        if self._lock is not None and not self._lock.take(exclusive=False, patience=_PATIENCE_SECONDS):
            raise ArgumentError(f"another writer keeps {self._folder} to itself, to look at what it holds; try again")

    def _refuse_remains(self) -> None:
        """Refuse an unsealed store with shards, unless other writers are at work on it. One writer asks at a time."""
        local = self._folder.local
        with contextlib.ExitStack() as stack:
            if local is not None and self._lock is not None:
                turn = stack.enter_context(FileLock(local / MANIFEST))
                turn.take(exclusive=True, patience=_PATIENCE_SECONDS)
                if not self._lock.take(exclusive=True):
                    return
            if committed := list_shards(self._folder).committed:
                raise ArgumentError(
                    f"{self._folder} holds {quantity(len(committed), 'shard')} of a writer that is done or was killed; "
                    'the store was not sealed. mode="append" adds to it, tokenfeed.seal(path) makes a complete store '
                    "of what is there; remove it to write it again"
                )
            self._join()

    def _is_left_over(self) -> bool:
        return not self._folder.exists(MANIFEST) and bool(list_shards(self._folder).committed)

    def append(self, columns: Mapping[str, Any], *, lengths: Sequence[int] | None = None, **spans: Any) -> None:
        """Add a document: its items in every column, and a new span in every table.

        `spans` gives payloads by table; a table that is not named gets a span without payload. `lengths` adds many
        documents at once: their items one after the other, and a list of payloads for each table.

            writer.append({"tokens": [1, 2, 3]}, documents={"url": "…"})
            writer.append({"tokens": [1, 2, 3]}, lengths=[2, 1], documents=[{"url": "…"}, {"url": "…"}])
        """
        arrays, num_items = self._check(columns, spans)
        counts = as_indices([num_items] if lengths is None else lengths, "lengths").tolist()
        if sum(counts) != num_items or min(counts, default=0) < 0:
            raise ArgumentError(f"lengths add up to {sum(counts):,}, but columns have {quantity(num_items, 'item')}")
        begun = {}
        for table in self._codecs:
            if lengths is None:
                begun[table] = counts, [self._encode(table, spans.get(table))]
                continue
            given = spans.get(table, [None] * len(counts))
            is_one = isinstance(given, str | bytes | Mapping) or not isinstance(given, Sized)
            if is_one or len(given) != len(counts):  # the letters of a text, or the keys of a dict, would be payloads
                payloads = f"{given!r:.80}" if is_one else quantity(len(given), "payload")
                expected = f"a list of {quantity(len(counts), 'payload')}, one for each of lengths"
                raise ArgumentError(f"got {payloads} for {table!r}; expected {expected}")
            begun[table] = counts, [self._encode(table, payload) for payload in given]
        self._write(arrays, num_items, begun, len(counts))

    def extend(self, columns: Mapping[str, Any], **spans: Any) -> None:
        """Add items to the last document. Only the tables named get a new span; in the others the last span grows.

        writer.append({"tokens": [1, 2]}, documents={"url": "…"}, concepts=["a"])
        writer.extend({"tokens": [3, 4]}, concepts=["b"])           # the same document, another concept
        """
        if self._shard is None:
            raise ArgumentError("there is no document to extend: append one first")
        arrays, num_items = self._check(columns, spans)
        begun = {table: ([num_items], [self._encode(table, payload)]) for table, payload in spans.items()}
        self._write(arrays, num_items, begun)

    def _check(self, columns: Mapping[str, Any], spans: Mapping[str, Any]) -> tuple[dict[str, Array], int]:
        """The columns as arrays, and the number of their items."""
        if self._closed:
            raise ArgumentError(f"the writer of {self._folder} is closed; open a new one")
        if not isinstance(columns, Mapping):
            expected = ", ".join(f"{name!r}: …" for name in self._columns)
            raise ArgumentError(f"expected the columns by name, {{{expected}}}, and got a {type(columns).__name__}")
        if columns.keys() != self._columns.keys():
            raise FitError(f"expected the columns {sorted(self._columns)}, got {sorted(columns)}")
        arrays = {name: fit(columns[name], column, name) for name, column in self._columns.items()}
        counts = {name: len(array) for name, array in arrays.items()}
        if len(set(counts.values())) > 1:
            raise FitError(f"columns must have the same number of items; they have {counts}")
        for table in spans.keys() - self._codecs.keys():
            raise ArgumentError(f"the store has no span table {table!r}; it has {', '.join(self._codecs) or 'none'}")
        return arrays, max(counts.values(), default=0)

    def _encode(self, table: str, payload: Any) -> bytes | None:
        """The payload as bytes; None for no payload. Errors of the caller's codec are passed on as they are."""
        codec = self._codecs[table]
        if payload is None:
            return None
        if codec is None:
            raise ArgumentError(f"span table {table!r} has no codec, so its spans take no payload; got {payload!r}")
        return codec.encode(payload)

    def _write(self, arrays: Mapping[str, Array], num_items: int, spans: Spans, num_documents: int = 0) -> None:
        try:
            if num_documents and self._shard is not None and self._shard.num_bytes >= self._shard_bytes:
                self._commit()
            if self._shard is None:
                name = f"{self._name}-{len(self.shards):05d}"
                tables = {table: codec is not None for table, codec in self._codecs.items()}
                self._shard = ShardWriter(
                    *(self._folder, name, self._columns, tables),
                    split=self._split,
                    sync=self._sync,
                    redo=self._redo,
                    check_owner=None if self._lease is None else self._lease.check,
                )
                self._shard.begin()
            self._shard.append(arrays, num_items, spans)
            self._shard.num_documents += num_documents
        except BaseException as error:  # Ctrl-C too: part of the document may be on disk
            self._give_up(error, num_documents, num_items)
            raise

    def _give_up(self, error: BaseException, num_documents: int = 0, num_items: int = 0) -> None:
        """Discard the shard being written, and say in a note how much is lost, with what was to be appended to it."""
        if self._shard is not None:
            num_documents += self._shard.num_documents
            num_items += self._shard.num_items
        if num_documents:
            error.add_note(
                f"The shard being written was given up: of the documents appended to this writer, the first "
                f"{self._num_documents:,} are kept, and the {num_documents:,} after them "
                f"({quantity(num_items, 'item')}) are lost."
            )
        self._discard()

    def _discard(self) -> None:
        shard, self._shard = self._shard, None
        if shard is not None:
            self.shards.pop(shard.name, None)
            shard.abort()

    def _commit(self) -> None:
        shard = self._shard
        if shard is None:
            return
        if self._seals:  # before the commit: a crash after it must not leave a list without this shard
            unseal(self._folder, sync=self._sync)
        self.shards[shard.name] = shard.commit()
        self._num_documents += shard.num_documents
        self._shard = None
        shard.close()
        if self._seals:  # again: another writer may have sealed the store meanwhile
            unseal(self._folder, sync=self._sync)

    def close(self) -> None:
        """Commit the last shard, and seal the store unless another writer is working on a shard."""
        if self._closed:
            return
        try:
            self._commit()
            if self._seals and not self._is_another_at_work():
                seal(self._folder, sync=self._sync)
        except BaseException as error:
            self._give_up(error)
            raise
        finally:
            self._closed = True
            self._release()

    def _is_another_at_work(self) -> bool:
        """Whether a shard is being written; one whose writer was killed does not count, where that can be told."""
        local, unfinished = self._folder.local, list_shards(self._folder).unfinished
        return not all(local is not None and is_abandoned(local / name) for name in unfinished)

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()
        if self._lease is not None:
            self._lease.release()
            self._lease = None

    def abort(self) -> None:
        """Discard the shard being written. Committed shards stay."""
        self._closed = True
        self._discard()
        self._release()

    def __repr__(self) -> str:
        columns = ", ".join(f"{name}: {column}" for name, column in self._columns.items())
        begun = 0 if self._shard is None else self._shard.num_items
        state = "closed" if self._closed else f"{quantity(begun, 'item')} in the shard being written"
        done = quantity(len(self.shards), "shard")
        return f"Writer({str(self._folder)!r}; {done} committed, {state}; {columns}; spans {list(self._codecs)})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()


def _column(name: str, described: Any) -> Column:
    check_name("column", name, where="columns")
    try:
        dtype = np.dtype(described)
        base, shape = dtype.subdtype or (dtype, ())
        check_dtype(base, what=f"column {name!r}")
        # The dtype as the manifest will return it: without alignment flags, and not at all if it has titles.
        base = descr_from_json(json.loads(json.dumps(descr_to_json(base))), what=f"column {name!r}")
        build_header(base, shape, 0)
    except (TypeError, UnicodeEncodeError, FormatError) as error:
        raise ArgumentError(f"column {name!r} cannot have dtype {described!r}: {error}") from error
    if 0 in shape:
        raise ArgumentError(f"column {name!r} has inner shape {shape}, which holds no values")
    return Column(base, shape)


def fit(values: Any, column: Column, name: str) -> Array:
    """`values` as a C-contiguous array of the column's dtype, shape (number of items, *inner shape).

    No value changes, except that floating-point numbers may be rounded. An array that already has the dtype is not
    copied.
    """
    is_list = isinstance(values, list | tuple)  # structured items can only be given as tuples of known fields
    try:
        array = np.asarray(values, dtype=_loose(column.dtype) if is_list and column.dtype.names is not None else None)
    except (ValueError, TypeError) as error:
        reason = str(error).partition(". ")[0]
        raise FitError(
            f"column {name!r} cannot be one array: {reason}. Documents go end to end, with lengths=[…]"
        ) from error
    if array.dtype.kind in "UST" and column.dtype.kind not in "US":
        raise FitError(
            f"column {name!r} is {column.dtype}, and was given text. Append its tokens: tokenizer.encode(text)"
        )
    if array.ndim != 1 + len(column.shape) or array.shape[1:] != column.shape:
        shape = ", ".join(["items", *map(str, column.shape)])
        raise FitError(f"column {name!r} expects an array of shape ({shape}), got {array.shape}")
    if array.dtype != column.dtype:
        array = _convert(array, column.dtype, name)
    return np.ascontiguousarray(array)


def _loose(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The same fields, of Python objects: tuples are put into them without a conversion."""
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return np.dtype((_loose(base), shape))
    return np.dtype([(field, _loose(dtype[field])) for field in dtype.names] if dtype.names is not None else object)


def _convert(array: Array, dtype: np.dtype[Any], name: str) -> Array:
    if array.size == 0:
        return array.astype(dtype)
    if dtype.names is not None and _loose(array.dtype) == _loose(dtype):
        structured = np.zeros(array.shape, dtype)
        for field in dtype.names:
            structured[field] = _convert(array[field], dtype[field].base, f"{name}.{field}")
        return structured
    if array.dtype == object:
        with contextlib.suppress(ValueError):
            inferred = np.asarray(array.tolist())
            array = inferred if inferred.shape == array.shape else array
    given, kept = array.dtype.kind, dtype.kind
    is_rounded = given in "iu" and kept in "fc"  # NumPy calls it safe to make a float64 of an int64
    if np.can_cast(array.dtype, dtype, "safe") and not (is_rounded and array.itemsize == 8) and dtype.names is None:
        return array.astype(dtype)
    if given in "iu" and kept in "iu":
        low, high = int(array.min()), int(array.max())
        limits = np.iinfo(dtype)
        if low < limits.min or high > limits.max:
            worst = low if low < limits.min else high
            raise FitError(f"column {name!r} is {dtype}, which holds {limits.min} to {limits.max}; got {worst}")
        return array.astype(dtype)
    if given + kept in ("ff", "cc", "fc") or is_rounded:
        with np.errstate(over="ignore"):
            converted = array.astype(dtype)
        bad = _find_changed(array, converted) if is_rounded else ~np.isfinite(converted) & np.isfinite(array)
        if bad.any():
            raise FitError(f"column {name!r} is {dtype}, which cannot hold {array[bad].reshape(-1)[0]} exactly")
        return converted
    raise FitError(f"column {name!r} is {dtype}; values of {array.dtype} cannot be converted to it without loss")


def _find_changed(array: Array, converted: Array) -> Array:
    """Which whole numbers became others: the same number must come back. What is too large for that is left out."""
    limits = np.iinfo(array.dtype)
    real = converted.real.astype(np.result_type(converted.real, float))
    inside = (real >= float(limits.min)) & (real < float(limits.max + 1))
    changed: Array = ~inside | (np.where(inside, real, 0).astype(array.dtype) != array)
    return changed
