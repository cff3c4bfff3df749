"""Inputs that are tokenised already: a column of lists of ids in Parquet, Arrow (IPC files and streams) or JSONL."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tokenfeed.errors import CorruptionError, FormatError, MissingError
from tokenfeed.text.sources.finding import ENDINGS
from tokenfeed.text.sources.json_lines import LineError, parse_object
from tokenfeed.text.sources.memory import MemoryDocuments, MemoryText
from tokenfeed.text.sources.portions import GROUP_ROWS, Portion, Tally, TextRules
from tokenfeed.text.sources.stored import StoredFile
from tokenfeed.types import Array

__all__ = ["TOKEN_ENDINGS", "TokenFile", "TokenPortion"]

_ARROW = (".arrow", ".feather", ".ipc")
TOKEN_ENDINGS = (".parquet", *(each for each in ENDINGS if "json" in each), *_ARROW)
_ROWS = 1024


@dataclass
class TokenPortion(Portion):
    """Documents as ids; `texts` has an empty one for each."""

    tokens: list[Array] = field(default_factory=list)


class TokenFile:
    """One file, which is one slice. It is read about a thousand documents at a time."""

    def __init__(self, file: StoredFile | MemoryDocuments, column: str, num_ids: int) -> None:
        """Ids from `num_ids` on are refused."""
        self._file, self._column, self._num_ids = file, column, num_ids

    def cut(self, slice_bytes: int) -> list[int]:
        size = self._file.stamp()[0]
        return [0, size] if size else [0] if isinstance(self._file, StoredFile) else [0, 1]

    def read_slice(self, start: int, stop: int, rules: TextRules) -> Iterator[TokenPortion]:
        """The documents. A null list is none."""
        tally, tokens = Tally(rules), list[Array]()
        if isinstance(self._file, MemoryDocuments):
            rows = self._read_memory(self._file, rules.keep)
        else:
            is_lines = not self._file.name.endswith((".parquet", *_ARROW))
            rows = (self._read_lines if is_lines else self._read_batches)(self._file, rules.keep)
        for number, (where, ids, kept) in enumerate(rows, start=1):
            if problem := ids if isinstance(ids, str) else self._find_problem(ids):
                tally.malformed(where, f"{self._column!r} {problem}")
            elif ids is None:
                tally.null(where)
            else:
                tally.add(text="", kept=kept)
                tokens.append(ids)
            if number % _ROWS == 0:
                yield TokenPortion(**vars(tally.portion(0)), tokens=tokens)
                tokens = []
        yield TokenPortion(**vars(tally.portion(stop - start)), tokens=tokens)

    def _find_problem(self, ids: Array | None) -> str:
        if ids is None or not ids.size or (ids.min() >= 0 and ids.max() < self._num_ids):
            return ""
        outside = ids[(ids < 0) | (ids >= self._num_ids)][0]
        return f"holds id {outside}; ids must be from 0 to {self._num_ids - 1:,}, by the tokenizer or the dtype"

    def _read_memory(self, file: MemoryDocuments, keep: Sequence[str]) -> Iterator[tuple[str, Any, dict[str, Any]]]:
        text, columns = MemoryText(file, self._column), (self._column, *keep)
        for group in itertools.count():
            rows = text.rows(group, columns)
            if rows is None:
                return
            for number, row in enumerate(rows, start=group * GROUP_ROWS):
                self._check_names(list(row) if isinstance(row, Mapping) else [], columns)
                yield f"{file.name}, row {number:,}", _as_ids(row[self._column]), {name: row[name] for name in keep}

    def _read_lines(self, file: StoredFile, keep: Sequence[str]) -> Iterator[tuple[str, Any, dict[str, Any]]]:
        with file.stream() as stream:
            for number, line in enumerate(stream, start=1):
                if line.isspace():
                    continue
                where = f"{self._file.name}, line {number:,}"
                try:
                    fields = parse_object(line.removeprefix(b"\xef\xbb\xbf"), self._column, keep)
                except LineError as error:
                    yield where, f"cannot be read: {error}", {}
                    continue
                self._check_names(list(fields), (self._column,))
                yield where, _as_ids(fields[self._column]), {name: fields.get(name) for name in keep}

    def _read_batches(self, file: StoredFile, keep: Sequence[str]) -> Iterator[tuple[str, Any, dict[str, Any]]]:
        import pyarrow as pa

        row = 0
        with pa.PythonFile(file.open(), "r") as source:
            try:
                for batch in self._batches(source, keep):
                    lists, kept = _lists(batch.column(self._column)), batch.select(list(keep)).to_pylist()
                    for ids, values in zip(lists, kept or [{}] * len(lists), strict=True):
                        yield f"{self._file.name}, row {row:,}", ids, values
                        row += 1
            except (pa.ArrowException, OSError) as error:
                if isinstance(error, OSError) and error.errno is not None:
                    raise
                raise CorruptionError(f"{self._file.name} cannot be read: {error}. Fetch or write it again.") from error

    def _batches(self, source: Any, keep: Sequence[str]) -> Iterator[Any]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        if self._file.name.endswith(".parquet"):
            file = pq.ParquetFile(source, pre_buffer=False)
            self._check_schema(file.schema_arrow, keep)
            yield from file.iter_batches(_ROWS, columns=[self._column, *keep], use_threads=False)
            return
        is_file = source.read(6) == b"ARROW1"  # else a stream, as the files of Hugging Face datasets
        source.seek(0)
        reader = pa.ipc.open_file(source) if is_file else pa.ipc.open_stream(source)
        self._check_schema(reader.schema, keep)
        for batch in map(reader.get_batch, range(reader.num_record_batches)) if is_file else reader:
            batch.validate(full=True)  # Arrow would read whatever offsets say
            yield batch

    def _check_schema(self, schema: Any, keep: Sequence[str]) -> None:
        import pyarrow as pa

        self._check_names(schema.names, (self._column, *keep))
        kind = schema.field(self._column).type
        is_list = any(test(kind) for test in (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list))
        if not is_list or not pa.types.is_integer(kind.value_type):
            raise FormatError(f"{self._file.name}: column {self._column!r} is {kind}; expected lists of integers")

    def _check_names(self, there: Sequence[str], wanted: Sequence[str]) -> None:
        if missing := [name for name in wanted if name not in there]:
            option = "tokens_column=…" if missing[0] == self._column else "keep=…"
            names = ", ".join(there) or "none"
            raise MissingError(
                f"{self._file.name} has no column {missing[0]!r}; it has {names}. Name one that is there: {option}"
            )


def _lists(column: Any) -> list[Any]:
    """The lists of an Arrow column as arrays; None for null, and what is wrong with a list that holds a null."""
    import pyarrow.compute as pc

    flat, lengths = column.flatten(), pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
    if flat.null_count:
        return [_as_ids(row) for row in column.to_pylist()]
    ids, valid = flat.to_numpy(zero_copy_only=False), column.is_valid().to_numpy(zero_copy_only=False)
    bounds = itertools.pairwise(np.concatenate(([0], np.cumsum(lengths))).tolist())
    return [ids[start:stop] if is_there else None for (start, stop), is_there in zip(bounds, valid, strict=True)]


def _as_ids(value: Any) -> Any:
    """A list, an array or a tensor as an array; None for null, and what is wrong with anything else."""
    if value is None:
        return None
    try:
        ids = np.asarray(value)
    except (ValueError, OverflowError):
        return "is not a list of ids"
    if ids.shape == (0,):
        return np.empty(0, np.int64)
    return ids if ids.ndim == 1 and ids.dtype.kind in "iu" else "is not a list of ids"
