"""JSONL, with Python's `json` to compare with; Arrow; tokenizers of all three forms."""

import base64
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from fuzz.harness import Case
from fuzz.mutator import mutate_bytes, mutate_json
from fuzz.store_targets import check
from slices import strings
from tokenfeed import Tokenizer
from tokenfeed.errors import TokenfeedError
from tokenfeed.preparation.inputs import cut, find_inputs, read_slice
from tokenfeed.text.sources.files import TextFiles
from tokenfeed.text.sources.jsonl import JsonlText
from tokenfeed.text.sources.portions import TextRules
from tokenfeed.text.sources.stored import StoredFile
from tokenfeed.text.tokenizer.vocabulary import Vocabulary

Attempt = Callable[[Case], None]
PATTERN = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,2}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
)
FIRST = b'{"text": "first", "id": 0}\n'
LINES = [
    *(b'{"text": "plain words, some of them", "id": 7}', b'{"id": {"a": [1, 2, {"b": null}]}, "text": "x"}', b"", b" "),
    *(b'{"text": "a\\n\\t\\"b\\" \\\\ \\/ \\u00e9 \\ud83d\\ude00", "id": "\\u0041"}', b'{"text": null}', b'{"id": 1}'),
    *('{"text": "é😀 …", "id": "ü"}'.encode(), b'{"te\\u0078t": "escaped key"}', b'{"text": "a", "text": "b"}'),
    *(
        b'{"text": "n", "id": [-0.5e-3, 1E+9, NaN, -Infinity, true]}',
        b'{"text": ""}',
        b'{"text": "' + b"y" * 300 + b'"}',
    ),
    *(b'{"text": "a", "id": ' + b"[" * 250 + b"]" * 250 + b"}", b'{"text": "a", "id": ' + b"9" * 3999 + b"}"),
]


def plain_documents(data: bytes) -> tuple[list[tuple[str, Any]], int]:
    """(documents, how many lines are none) by the plainest way there is."""
    documents, wrong = [], 0
    for line in data.removeprefix(b"\xef\xbb\xbf").split(b"\n"):
        if not line or line.isspace():
            continue
        try:
            found = json.loads(str(line, "utf-8"))
            text, kept = found["text"], found.get("id")
            json.dumps([text, kept], ensure_ascii=False).encode()
            if text is not None and not isinstance(text, str):
                raise ValueError(text)
        except (ValueError, TypeError, LookupError, RecursionError):
            wrong += 1
            continue
        if text is not None:
            documents.append((text, json.dumps(kept)))
    return documents, wrong


def draw_lines(case: Case) -> bytes:
    rng = case.rng
    lines = [rng.choice(LINES) for _ in range(rng.randint(1, 6))]
    at = rng.randrange(len(lines))
    lines[at] = mutate_bytes(rng, lines[at])
    return FIRST + rng.choice((b"\n", b"\n", b"\r\n")).join(lines) + rng.choice((b"", b"\n"))


def read_prepared(case: Case, path: Path) -> tuple[list[tuple[str, Any]], int]:
    """(documents, how many lines are none) as `tokenfeed prepare` reads them, however it cuts."""
    rng = case.rng
    rules = TextRules(keep=("id",), on_error="skip", portion_bytes=rng.choice((1, 20, 1 << 20)))
    (file,) = find_inputs(path)
    documents: list[tuple[str, Any]] = []
    malformed = 0
    for part in cut(0, file, slice_bytes=rng.choice((1 << 30, 64))):
        for portion in read_slice(file, part, rules):
            malformed += portion.num_malformed
            documents += [
                (text, json.dumps(kept["id"])) for text, kept in zip(portion.texts, portion.kept, strict=True)
            ]
    return documents, malformed


def too_much(data: bytes) -> bool:
    """Where `json` and we have limits that differ: nesting, and numbers of thousands of digits."""
    return data.count(b"[") + data.count(b"{") > 255 or len(data) > 3900


def jsonl(folder: Path) -> Attempt:
    """Lines as groups and as slices: the same documents, or the same lines refused."""

    def attempt(case: Case) -> None:
        data = draw_lines(case)
        case.write(folder / "a.jsonl", data)
        expected, wrong = plain_documents(data)
        found, malformed = read_prepared(case, folder / "a.jsonl")
        if not too_much(data):
            check((found, malformed) == (expected, wrong), found, expected, malformed, wrong)
        text = JsonlText(StoredFile(str(folder / "a.jsonl")), "text")
        try:
            streamed = [each for _, batch in strings(text.read(0), 3) for each in batch if each is not None]
        except TokenfeedError:
            check(wrong or too_much(data), "refused without need")
            raise
        finally:
            text.close()
        check(streamed == [each for each, _ in expected] or wrong or too_much(data), streamed)

    return attempt


def jsonl_compressed(folder: Path) -> Attempt:
    """Compressed files, damaged before or after they are compressed."""

    def attempt(case: Case) -> None:
        rng = case.rng
        data = draw_lines(case)
        kind = rng.choice(("gz", "zst"))
        packed = gzip.compress(data, 1) if kind == "gz" else pa.compress(data, codec="zstd", asbytes=True)
        whole = rng.random() < 0.3
        path = folder / f"a.jsonl.{kind}"
        case.write(path, packed if whole else mutate_bytes(rng, packed))
        found, malformed = read_prepared(case, path)
        if whole and not too_much(data):
            check((found, malformed) == plain_documents(data))
        text = JsonlText(StoredFile(str(path)), "text")
        try:
            for _ in strings(text.read(0), 3):
                pass
        finally:
            text.close()

    return attempt


def arrow_text(folder: Path) -> Attempt:
    """Text in record batches, plain and compressed: refused, or read the same twice."""
    originals = {}
    for kind in (None, "zstd"):
        sink, table = pa.BufferOutputStream(), pa.table({"id": range(20), "text": [f"text {n} é" for n in range(20)]})
        with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=kind)) as writer:
            writer.write_table(table, max_chunksize=7)
        originals[kind] = sink.getvalue().to_pybytes()

    def attempt(case: Case) -> None:
        data = originals[case.rng.choice((None, "zstd"))]
        case.write(folder / "a.arrow", mutate_bytes(case.rng, data))
        documents, malformed = read_prepared(case, folder / "a.arrow")
        streamed = TextFiles.find(folder / "a.arrow").documents()
        check(malformed or list(streamed) == [text for text, _ in documents])

    return attempt


def byte_tokenizer() -> Tokenizer:
    return Tokenizer(_vocabulary(), engine="tiktoken")


def _vocabulary() -> Vocabulary:
    merges = [b"th", b"the", b"in", b"er", b" t", b" the", "é".encode()]
    ranks = {bytes((byte,)): byte for byte in range(256)} | {token: 256 + rank for rank, token in enumerate(merges)}
    return Vocabulary(ranks, PATTERN, {"<|bos|>": 300}, "<|bos|>")


def _use(tokenizer: Tokenizer) -> None:
    """Whatever was loaded encodes, and comes back where its pattern leaves nothing out."""
    text = "the inner théâtre, 12345 times\n 😀 <|bos|>"
    ids = tokenizer.encode(text)
    decoded = tokenizer.decode(ids)
    check(decoded == text or tokenizer.pattern != PATTERN, decoded)
    tokenizer.token_bytes, tokenizer.digest, str(tokenizer)


def tokenizer(folder: Path) -> Attempt:
    """Our own form."""
    path = byte_tokenizer().save(folder / "tokenizer.json", overwrite=True) or folder / "tokenizer.json"
    fields = json.loads(Path(path).read_bytes())

    def attempt(case: Case) -> None:
        case.write(folder / "tokenizer.json", mutate_json(case.rng, fields))
        _use(Tokenizer.load(folder, engine="tiktoken"))

    return attempt


def hugging_face(folder: Path) -> Attempt:
    """`tokenizer.json` of Hugging Face."""
    from tokenfeed.text.tokenizer.byte_pairs import BYTE_CHARACTERS

    characters = BYTE_CHARACTERS
    pairs = [("t", "h"), ("th", "e"), ("i", "n"), ("e", "r"), ("Ġ", "t"), ("Ġ", "the")]
    vocabulary = {character: byte for byte, character in enumerate(characters)}
    vocabulary |= {left + right: 256 + rank for rank, (left, right) in enumerate(pairs)}
    split = {"type": "Split", "pattern": {"Regex": PATTERN}, "behavior": "Isolated", "invert": False}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    fields = {
        "version": "1.0",
        "added_tokens": [{"id": 300, "content": "<|bos|>", "special": True}],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
        "model": {"type": "BPE", "dropout": None, "vocab": vocabulary, "merges": [list(pair) for pair in pairs]},
    }

    def attempt(case: Case) -> None:
        case.write(folder / "tokenizer.json", mutate_json(case.rng, fields))
        _use(Tokenizer.load(folder / "tokenizer.json"))

    return attempt


def any_tokenizer(folder: Path) -> Attempt:
    """Tokenizers of every kind, which their own library runs."""
    kinds = [_unigram(), _word_pieces()]

    def attempt(case: Case) -> None:
        case.write(folder / "tokenizer.json", mutate_json(case.rng, case.rng.choice(kinds)))
        _use(Tokenizer.load(folder / "tokenizer.json"))

    return attempt


def _unigram() -> dict[str, Any]:
    words = ["<unk>", "<|bos|>", *"▁thein, 12345ré\nms", "▁the", "in", "er"]
    return {
        "version": "1.0",
        "added_tokens": [
            {"id": number, "content": words[number], "single_word": False, "lstrip": False, "rstrip": False}
            | {"normalized": False, "special": True}
            for number in range(2)
        ],
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFKC"}, {"type": "Lowercase"}]},
        "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
        "decoder": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
        "model": {"type": "Unigram", "unk_id": 0, "vocab": [[word, -1.5] for word in dict.fromkeys(words)]},
    }


def _word_pieces() -> dict[str, Any]:
    words = ["[UNK]", "the", "in", "##er", "##n", "12", "##3", "t", "##h"]
    model = {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##"}
    return {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {**model, "max_input_chars_per_word": 100, "vocab": {word: n for n, word in enumerate(words)}},
    }


def rank_file(folder: Path) -> Attempt:
    """Ranks of tiktoken."""
    data = b"".join(b"%b %d\n" % (base64.b64encode(token), rank) for token, rank in _vocabulary().ranks.items())

    def attempt(case: Case) -> None:
        case.write(folder / "ranks.tiktoken", mutate_bytes(case.rng, data))
        special = {"<|bos|>": 300}
        _use(
            Tokenizer.from_ranks(folder / "ranks.tiktoken", pattern=PATTERN, special_tokens=special, engine="tiktoken")
        )

    return attempt
