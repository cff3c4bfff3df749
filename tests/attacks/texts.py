"""Text files and tokenizers: Parquet of every odd kind, JSONL, and vocabularies that cannot be."""

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fuzz.harness import Case
from fuzz.mutator import NAMES, mutate_bytes
from fuzz.store_targets import check
from fuzz.text_targets import PATTERN, byte_tokenizer
from tokenfeed import Tokenizer
from tokenfeed.preparation.inputs import cut, find_inputs, read_slice
from tokenfeed.text.sources.files import TextFiles
from tokenfeed.text.sources.portions import TextRules

Attempt = Callable[[Case], None]
TEXTS = ["plain", "", None, "é😀", "x" * 5000, "two\nlines", "\0"]


def _tables() -> dict[str, tuple[Any, dict[str, Any], list[Any] | None]]:
    """By name: what is written, how, and the texts that must be found; None where it must be refused."""
    text = pa.array(TEXTS)
    found = list(TEXTS)
    return {
        "plain": (pa.table({"text": text}), {}, found),
        "large strings": (pa.table({"text": text.cast(pa.large_string())}), {}, found),
        "views of strings": (pa.table({"text": text}), {"use_dictionary": False}, found),
        "a dictionary": (pa.table({"text": text.dictionary_encode()}), {}, found),
        "one row a group": (pa.table({"text": text}), {"row_group_size": 1}, found),
        "compressed": (pa.table({"text": text}), {"compression": "zstd"}, found),
        "gzip": (pa.table({"text": text}), {"compression": "gzip"}, found),
        "the second version of pages": (pa.table({"text": text}), {"data_page_version": "2.0"}, found),
        "many columns": (pa.table({"a": range(7), "text": text, "b": range(7)}), {}, found),
        "no rows": (pa.table({"text": text[:0]}), {}, []),
        "only nulls": (pa.table({"text": pa.nulls(7, pa.string())}), {}, [None] * 7),
        "nulls of no type": (pa.table({"text": pa.nulls(7)}), {}, None),
        "no text": (pa.table({"other": text}), {}, None),
        "numbers": (pa.table({"text": range(7)}), {}, None),
        "lists": (pa.table({"text": [["a"], ["b"]]}), {}, None),
        "objects": (pa.table({"text": [{"a": "b"}]}), {}, None),
        "bytes": (pa.table({"text": [b"a", b"b"]}), {}, None),
        "bytes that are no text": (pa.table({"text": [b"\xff\xfe", b"\xed\xa0\x80"]}), {}, None),
        "floats": (pa.table({"text": [1.5, np.nan]}), {}, None),
        "two columns of one name": (pa.Table.from_arrays([text, text], names=["text", "text"]), {}, None),
        "another case": (pa.table({"Text": text}), {}, None),
    }


def parquet(folder: Path) -> Attempt:
    """Every odd table, then damaged bytes of one: the texts, or an error."""
    tables = _tables()
    files = {}
    for name, (table, written, _) in tables.items():
        path = folder / f"{name}.parquet"
        pq.write_table(table, path, **written)
        files[name] = path.read_bytes()
        path.unlink()
    named = list(tables)

    def attempt(case: Case) -> None:
        name = named[case.number] if case.number < len(named) else case.rng.choice(named[:9])
        is_whole = case.number < len(named)
        path = folder / "a.parquet"
        case.write(path, files[name] if is_whole else mutate_bytes(case.rng, files[name]))
        case.note("table", name)
        expected = tables[name][2]
        sources = TextFiles.find(path, split="all")
        try:
            found = [text for group in sources.iter_row_groups() for text in group]
        finally:
            sources.close()
        if is_whole and expected is not None:
            check([text for text in expected if text is not None] == [text for text in found if text is not None], name)
        check(all(text is None or isinstance(text, str) for text in found), "no text")
        if is_whole:
            check(expected is not None or name == "bytes", "was to be refused", name, found)
        (file,) = find_inputs(path)
        for part in cut(0, file):
            for portion in read_slice(file, part, TextRules()):
                check(all(isinstance(text, str) for text in portion.texts), "no text")

    return attempt


def _ours(**changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda fields: fields.update(changes)


PATTERNS = [
    *("", "(", "[", "(?R)", "(a+)+$", "\\p{Nope}", "(?i", "a{99999}", "(" * 200 + ")" * 200, "\\1", "x*", "(?<=a+)b"),
    *("\0", "."),
]
LINES = [b"", b" ", b"YQ==", b"YQ== -1", b"YQ== 97", b"= 1", b"YQ== 9" * 9, b"\xff 1", b"YWI= 300"]


def tokenizers(folder: Path) -> Attempt:
    """Tokenizers of our own form and of tiktoken whose parts each are valid JSON or base64, and cannot be meant."""
    byte_tokenizer().save(folder / "tokenizer.json")
    fields = json.loads((folder / "tokenizer.json").read_bytes())
    keys = list(fields)
    values: list[Any] = [None, True, -1, 2**63, 1.5, "", [], {}, [[]], {"": -1}, *NAMES[:16]]
    named: list[Callable[[dict[str, Any]], None]] = [_ours(**{key: value}) for key in keys for value in values]
    named += [_ours(pattern=pattern) for pattern in PATTERNS]
    named += [lambda fields, key=key: fields.pop(key) for key in keys]
    ranks = [b"%b %d" % (base64.b64encode(bytes((byte,))), byte) for byte in range(256)]

    def attempt(case: Case) -> None:
        if case.rng.random() < 0.75 or case.number < len(named):
            changed = json.loads(json.dumps(fields))
            named[case.number % len(named)](changed)
            case.write(folder / "tokenizer.json", json.dumps(changed).encode())
            tokenizer = Tokenizer.load(folder, engine="tiktoken")
        else:
            lines = list(ranks)
            for _ in range(case.rng.choice((1, 3))):
                lines[case.rng.randrange(len(lines))] = case.rng.choice(LINES)
            case.write(folder / "ranks.tiktoken", b"\n".join(lines))
            number = case.rng.choice((256, 300, 0, -1, 2**31, 2**40))
            special = {case.rng.choice(("<|bos|>", "", "a", "\ud800")): number}
            tokenizer = Tokenizer.from_ranks(
                folder / "ranks.tiktoken", pattern=PATTERN, special_tokens=special, engine="tiktoken"
            )
        text = "the inner théâtre, 12345\n 😀 <|bos|>"
        ids = tokenizer.encode(text)
        check(ids.size == 0 or (ids.min() >= 0 and ids.max() < tokenizer.vocab_size), "an id outside the vocabulary")
        decoded = tokenizer.decode(ids)
        check(decoded == text or tokenizer.vocabulary.pattern != PATTERN, decoded)

    return attempt
