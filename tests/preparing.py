"""What tests of `tokenfeed.prepare` share: inputs, what must come of them, and a picture of a store."""

import json
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import tokenfeed
from golden import golden_texts, golden_tokenizer
from tokenfeed.store.verify import verify

TOKENIZER = golden_tokenizer("tiktoken")
WORDS = ["the", "a", "of", "cat's", "12", "naïve", "語。", "\n\n", "\t", "...", "I'll", "run(x)", "{y}", "straße", "🙂"]


def make_documents(count, *, seed=0):
    """Texts of golden documents and of words, some empty, one long."""
    rng = random.Random(seed)
    golden = golden_texts()
    documents = []
    for number in range(count):
        kind = rng.random()
        if kind < 0.5:
            text = golden[rng.randrange(len(golden))]
        elif kind < 0.55:
            text = ""
        else:
            text = " ".join(rng.choice(WORDS) for _ in range(rng.randrange(400)))
        documents.append({"text": text, "url": f"https://example.org/{number}", "score": number / 8})
    return documents


def write_inputs(folder, count=120, *, seed=0):
    """Two JSONL files, one of them compressed, and a Parquet file. Returns the documents in the order of the files."""
    folder.mkdir(parents=True, exist_ok=True)
    documents = make_documents(count, seed=seed)
    third = count // 3
    write_jsonl(folder / "a.jsonl", documents[:third])
    (folder / "b.jsonl.gz").write_bytes(compress(jsonl(documents[third : 2 * third])))
    pq.write_table(pa.Table.from_pylist(documents[2 * third :]), folder / "c.parquet", row_group_size=7)
    return documents


def jsonl(documents):
    return "".join(json.dumps(document) + "\n" for document in documents).encode()


def write_jsonl(path, documents):
    path.write_bytes(jsonl(documents))


def compress(data):
    import gzip

    return gzip.compress(data, mtime=0)


def picture(store):
    """Every file of a store but the lock, and its bytes; of the manifest, all but the history of the store."""
    store = Path(store)
    files = {
        str(path.relative_to(store)): path.read_bytes()
        for path in sorted(store.rglob("*"))
        if path.is_file() and path.name != "lock"
    }
    if "manifest.json" in files:
        fields = json.loads(files["manifest.json"])
        files["manifest.json"] = {name: fields[name] for name in fields if name not in ("versions", "checksum")}
    return files


def damage(store):
    """What `verify` finds wrong with a store that may be unfinished, but for that."""
    return [problem for problem in verify(store).problems if " is not finished: " not in problem]


def contents(store, *, split=None):
    """(tokens, payload) of every document, in the order of the store."""
    opened = tokenfeed.open(store, split=split)
    documents = opened.documents()
    return [(one.tokens.tolist(), one.payload) for one in documents]


def expected_tokens(documents, tokenizer=None):
    tokenizer = tokenizer or golden_tokenizer("tiktoken")
    return [tokenizer.encode(document["text"], prepend="<|bos|>").tolist() for document in documents]


def prepare(inputs, out, **options):
    """In this process, with the golden tokenizer."""
    return tokenfeed.prepare(inputs, out, **{"tokenizer": TOKENIZER, "workers": 0, **options})
