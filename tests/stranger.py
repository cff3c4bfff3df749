"""A reader and a writer of stores after docs/format.md alone. Imports nothing of tokenfeed."""

import copy
import json
import re
from pathlib import Path

import numpy as np
import xxhash

STRIDE = 4096  # items per anchor
BLOCK = 4096  # bytes per block checksum
SUMS = "shard.blocks.npy"
NAME = r"[A-Za-z_][A-Za-z0-9_-]{0,99}"
SHARD, SPLIT = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}", r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}"


def need(condition, *about):
    if not condition:
        raise ValueError(*about)


def checksum(data):
    return xxhash.xxh3_64_hexdigest(data)


def signed(text):
    """A JSON file, from all of its bytes but the last two lines."""
    return text + f'"checksum": "{checksum(text)}"\n}}\n'.encode()


def block_sums(data):
    return [xxhash.xxh3_64_intdigest(data[i : i + BLOCK]) for i in range(0, len(data), BLOCK)]


def load(path, kind):
    raw = Path(path).read_bytes()
    need(raw == signed(raw[: raw.rindex(b'"checksum"')]), path, "not as it was written")
    value = json.loads(raw)
    need((value["format"], value["version"]) == (kind, 1), path, "format or version")
    return value, raw


def descr(dtype):
    """The dtype of a manifest, as a .npy header has it: fields are tuples there."""
    return dtype if isinstance(dtype, str) else [(f[0], descr(f[1]), *map(tuple, f[2:])) for f in dtype]


def row_dtype(dtype, shape):
    return np.dtype((np.lib.format.descr_to_dtype(descr(dtype)), tuple(shape)))


def header(dtype, shape, count):
    def text(count):
        return str({"descr": descr(dtype), "fortran_order": False, "shape": (count, *shape)})

    size = -(-(10 + len(text(10**19)) + 1) // 64) * 64
    return (
        b"\x93NUMPY\x01\x00" + (size - 10).to_bytes(2, "little") + text(count).encode("latin1").ljust(size - 11) + b"\n"
    )


def identity(manifest, checksums):
    columns = [[name, c["dtype"], c["shape"]] for name, c in manifest["columns"].items()]
    tables = [[name, t["codec"]] for name, t in manifest["spans"].items()]
    return checksum(json.dumps([columns, tables, list(checksums)]).encode())


class Shard:
    """One folder with a shard.json. Opening it checks names, counts, headers and sizes."""

    def __init__(self, folder, manifest, entry=None):
        need(re.fullmatch(SHARD, folder.name), folder, "name of shard")
        meta, raw = load(folder / "shard.json", "tokenfeed-shard")
        self.folder, self.checksum, self.split = folder, checksum(raw), meta["split"]
        self.items, self.spans, self.listed = meta["items"], meta["spans"], meta["files"]
        said = {"name": folder.name, "checksum": self.checksum} | {
            k: meta[k] for k in ("items", "split", "spans") if k in meta
        }
        need(entry in (None, said), folder, "not what the manifest says", said, entry)
        need(self.split is None or re.fullmatch(SPLIT, self.split), folder, "name of split")
        counts = [self.items, *(n for pair in self.spans.values() for n in pair)]
        need(all(type(n) is int and 0 <= n < 2**62 for n in counts), folder, "counts")
        need(self.spans.keys() == manifest["spans"].keys(), folder, "tables")
        self.files = {}  # by name: header, dtype of one row, number of rows
        for name, column in manifest["columns"].items():
            self.expect(f"{name}.npy", self.items, column["dtype"], column["shape"])
        for name, table in manifest["spans"].items():
            spans, size = self.spans[name]
            need(spans or not self.items, folder, "items without span")
            self.expect(f"{name}.starts.npy", spans)
            self.expect(f"{name}.anchors.npy", -(-self.items // STRIDE))
            if table["codec"] is not None:
                self.expect(f"{name}.offsets.npy", spans + 1)
                self.expect(f"{name}.payload.bin", size, "|u1")
        self.blocked = sorted(self.files)
        self.expect(SUMS, sum(-(-self.listed[file]["bytes"] // BLOCK) for file in self.blocked), "<u8")
        need(self.files.keys() == self.listed.keys(), folder, "files", set(self.files) ^ set(self.listed))

    def expect(self, file, count, dtype="<i8", shape=()):
        head = b"" if file.endswith(".bin") else header(dtype, shape, count)
        row = row_dtype(dtype, shape)
        self.files[file] = head, row, count
        size = len(head) + count * row.itemsize
        need((self.folder / file).stat().st_size == self.listed[file]["bytes"] == size, self.folder / file, "size")
        with (self.folder / file).open("rb") as f:
            need(f.read(len(head)) == head, self.folder / file, "header")

    def read(self, file, a=0, b=None):
        head, row, count = self.files[file]
        b = count if b is None else min(b, count)
        with (self.folder / file).open("rb") as f:
            f.seek(len(head) + a * row.itemsize)
            return np.frombuffer(f.read((b - a) * row.itemsize), row)

    def span(self, table, i):
        """(start, stop, payload) of span i; the payload is None where there is none."""
        start, stop = [*self.read(f"{table}.starts.npy", i, i + 2).tolist(), self.items][:2]
        if f"{table}.offsets.npy" not in self.files:
            return start, stop, None
        lo, hi = self.read(f"{table}.offsets.npy", i, i + 2).tolist()
        payload = None if lo < 0 else self.read(f"{table}.payload.bin", lo, ~hi if hi < 0 else hi).tobytes()
        return start, stop, payload

    def touched(self, table, a, b):
        j0, j1 = a // STRIDE, (b - 1) // STRIDE + 1
        anchors = self.read(f"{table}.anchors.npy", j0, j1 + 1)
        low, high = anchors[0], anchors[j1 - j0] if j1 - j0 < len(anchors) else self.spans[table][0] - 1
        starts = self.read(f"{table}.starts.npy", low, high + 2)
        first, last = np.searchsorted(starts, [a, b - 1], side="right") - 1
        found = [(i, *self.span(table, i)) for i in range(int(low + first), int(low + last) + 1)]
        return [span for span in found if span[1] < span[2]]

    def check(self):
        for file, said in self.listed.items():
            data = (self.folder / file).read_bytes()[len(self.files[file][0]) :]
            need(checksum(data) == said["checksum"], self.folder / file, "checksum")
        sums = [n for file in self.blocked for n in block_sums((self.folder / file).read_bytes())]
        need(self.read(SUMS).tolist() == sums, self.folder / SUMS, "checksums of blocks")
        for table, (_, size) in self.spans.items():
            starts, anchors = self.read(f"{table}.starts.npy"), self.read(f"{table}.anchors.npy")
            need((starts[:1] == 0).all() and (np.diff(starts, append=self.items) >= 0).all(), table, "starts")
            at = np.arange(0, self.items, STRIDE)
            need((anchors == np.searchsorted(starts, at, side="right") - 1).all(), table, "anchors")
            if f"{table}.offsets.npy" in self.files:
                raw = self.read(f"{table}.offsets.npy")
                o = np.where(raw < 0, ~raw, raw)
                need(raw[-1] == size and o[0] == 0 and (np.diff(o) >= 0).all(), table, "offsets")
                need((np.diff(o)[raw[:-1] < 0] == 0).all(), table, "bytes of a span without payload")


class Store:
    """A store, sealed or not, or one that is combined from others."""

    def __init__(self, path, version=None):
        path = Path(path)
        self.manifest, _ = load(path / "manifest.json", "tokenfeed")
        need(all(re.fullmatch(NAME, n) for k in ("columns", "spans") for n in self.manifest[k]), path, "names")
        if "stores" in self.manifest:
            self.shards = []
            for entry in self.manifest["stores"]:
                part = Store(path / entry["uri"], entry["version"])
                need(part.identity == entry["identity"], path, entry, "identity is", part.identity)
                for key in ("columns", "spans", "tokenizer"):
                    need(part.manifest[key] == self.manifest[key], path, entry, key)
                self.shards += part.shards
        else:
            entries = self.manifest.get("shards", self.manifest.get("earlier", []))
            need(all(re.fullmatch(SHARD, e["name"]) for e in entries), path, "names of shards")
            if version is not None and "versions" in self.manifest:
                said = self.manifest["versions"][version - 1]
                entries = entries[: said["shards"]]
                need(checksum("".join(e["checksum"] for e in entries).encode()) == said["checksum"], path, "version")
            self.shards = [Shard(path / e["name"], self.manifest, e) for e in entries]
            if version is None and "shards" not in self.manifest:
                names, listed = (p.parent.name for p in path.glob("*/shard.json")), {e["name"] for e in entries}
                new = sorted(name for name in names if not name.startswith(".") and name not in listed)
                self.shards += [Shard(path / name, self.manifest) for name in new]
        self.identity = identity(self.manifest, [s.checksum for s in self.shards])

    def __len__(self):
        return sum(s.items for s in self.shards)

    def only(self, split):
        """The shards of one split, as a store."""
        some = copy.copy(self)
        some.shards = [s for s in self.shards if s.split == split]
        return some

    def check(self):
        for shard in self.shards:
            shard.check()

    def pieces(self, a, b):
        """(shard, its number, [lo, hi) within it, items in front of it) of the shards that items [a, b) touch."""
        base = 0
        for k, shard in enumerate(self.shards):
            lo, hi = max(a - base, 0), min(b - base, shard.items)
            if lo < hi:
                yield shard, k, lo, hi, base
            base += shard.items

    def items(self, column, a, b):
        row = row_dtype(**self.manifest["columns"][column])
        parts = [shard.read(f"{column}.npy", lo, hi) for shard, _, lo, hi, _ in self.pieces(a, b)]
        return np.concatenate([np.empty(0, row), *parts], dtype=row.base)

    def spans(self, table, a, b):
        """(number, start, stop, payload) of the spans that items [a, b) touch; start and stop clipped, from a on."""
        out = []
        for shard, k, lo, hi, base in self.pieces(a, b):
            before = sum(s.spans[table][0] for s in self.shards[:k])
            for i, start, stop, payload in shard.touched(table, lo, hi):
                out.append((before + i, max(start, lo) + base - a, min(stop, hi) + base - a, payload))
        return out

    def document(self, i, column="tokens", table="documents"):
        """(items, payload) of span i, counted over all shards."""
        for shard in self.shards:
            if i < shard.spans[table][0]:
                start, stop, payload = shard.span(table, i)
                return shard.read(f"{column}.npy", start, stop), payload
            i -= shard.spans[table][0]
        raise IndexError(i)


def dump(path, value):
    hidden = path.with_name("." + path.name)
    hidden.write_bytes(signed(json.dumps(value, ensure_ascii=False).removesuffix("}").encode() + b",\n"))
    hidden.replace(path)


def write(path, columns, tables, shards, sealed, tokenizer=None):
    """columns: {name: (dtype, shape)}; tables: {name: codec}; shards: {name: (split, {column: values},
    {table: [(length, payload or None), ...]})}, payloads as bytes."""
    path = Path(path)
    path.mkdir()
    manifest = {"format": "tokenfeed", "version": 1}
    manifest["columns"] = {name: {"dtype": dtype, "shape": shape} for name, (dtype, shape) in columns.items()}
    manifest["spans"] = {name: {"codec": codec} for name, codec in tables.items()}
    manifest |= {"tokenizer": tokenizer, "provenance": {}}
    dump(path / "manifest.json", manifest)
    entries = []
    for name, (split, values, spans) in sorted(shards.items()):
        folder, files, sizes = path / name, {}, {}
        folder.mkdir()
        items = len(next(iter(values.values())))

        def put(file, data, head=b"", folder=folder, files=files):
            (folder / file).write_bytes(head + data)
            files[file] = {"bytes": len(head) + len(data), "checksum": checksum(data)}

        def put_array(file, data, dtype="<i8", shape=(), put=put):
            put(file, np.ascontiguousarray(data, descr(dtype)).tobytes(), header(dtype, shape, len(data)))

        for column, (dtype, shape) in columns.items():
            put_array(f"{column}.npy", values[column], dtype, shape)
        for table, codec in tables.items():
            lengths, payloads = [n for n, _ in spans[table]], [p for _, p in spans[table]]
            starts = np.cumsum([0, *lengths])[:-1]
            put_array(f"{table}.starts.npy", starts)
            put_array(f"{table}.anchors.npy", np.searchsorted(starts, np.arange(0, items, STRIDE), side="right") - 1)
            sizes[table] = [len(starts), 0]
            if codec is not None:
                ends = np.cumsum([0, *(len(p or b"") for p in payloads)])
                put_array(f"{table}.offsets.npy", np.where([*(p is None for p in payloads), False], ~ends, ends))
                put(f"{table}.payload.bin", b"".join(p or b"" for p in payloads))
                sizes[table][1] = int(ends[-1])
        put_array(SUMS, [n for file in sorted(files) for n in block_sums((folder / file).read_bytes())], "<u8")
        about = {"items": items, "split": split, "spans": sizes}
        dump(folder / "shard.json", {"format": "tokenfeed-shard", "version": 1, **about, "files": files})
        entries.append({"name": name, **about, "checksum": checksum((folder / "shard.json").read_bytes())})
    if sealed:
        dump(path / "manifest.json", {**manifest, "shards": entries})
