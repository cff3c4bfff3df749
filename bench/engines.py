"""Measures engines: `python bench/engines.py [--quick] [--text FOLDER] [--threads 1,2,4,8,16] [--json PATH]`.

MB of text a second into a NumPy array, cold: each engine is made again for every pass, and sees each text once. Ours
and tiktoken, and fastokens and gigatoken where they are installed (`pip install fastokens gigatoken`); by turns.
`--text` is a folder of Parquet files with a column `text`; unless given, Python sources of this machine are taken.
`--ranks` is a file of tiktoken's (or its .gz) with the vocabulary for the pattern gpt4. Exit status 1 if a bar is
missed; `--quick` takes little text and few repetitions, and enforces nothing.

    python bench/engines.py --text FOLDER --only fastokens --patterns nanochat,gpt4 --ranks cl100k_base.tiktoken.gz
    python bench/engines.py --text FOLDER --flat 10 --threads 2      # only private memory, over 10 GB of text
"""

import argparse
import base64
import gzip
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from measure import Report, interleave
from text import find_text, find_tokenizer
from tokenfeed.text.sources.files import TextFiles
from tokenfeed.text.tokenizer.tokenizer import Tokenizer
from tokenfeed.text.tokenizer.vocabulary import PATTERNS, Vocabulary

Encode = Callable[[list[str], int], Any]
BATCH = 4096
BARS = {"fastokens": 1.6, "gigatoken": 1.0, "tiktoken": 4.0}
MEMORY_BAR, GROWTH_BAR = 64, 16
MEMORY_THREADS = (1, 2, 16)
SCHEMES = {"gpt2": "gpt2", "gpt4": "gpt4", "gpt4o": "o200k"}


def fastokens(vocabulary: Vocabulary, ranks: Path) -> Encode:
    """On all cores whatever it is told, unless it is given one text at a time."""
    import fastokens as library

    made = library.Tokenizer.from_tiktoken(str(ranks), pattern=vocabulary.pattern)
    return lambda texts, threads: (
        [made.encode_batch_flat((text,)) for text in texts] if threads == 1 else made.encode_batch_flat(texts)
    )


def gigatoken(vocabulary: Vocabulary, ranks: Path) -> Encode:
    import gigatoken as library

    names = {PATTERNS[name]: scheme for name, scheme in SCHEMES.items()}
    made = library.Tokenizer.from_tiktoken(str(ranks), names[vocabulary.pattern])
    return lambda texts, threads: [made.encode(text) for text in texts] if threads == 1 else made.encode_batch(texts)


def by_engine(engine: str) -> Callable[[Vocabulary, Path], Encode]:
    def make(vocabulary: Vocabulary, _: Path) -> Encode:
        made = Tokenizer(vocabulary, engine=engine)
        return lambda texts, threads: made.encode_batch(texts, threads=threads)

    return make


def rates(
    report: Report,
    texts: list[str],
    vocabulary: Vocabulary,
    pattern: str,
    threads: int,
    rounds: int,
    only: str | None = None,
) -> None:
    """All engines on one pattern, by turns; or ours and one other."""
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    makers = {"tokenfeed": by_engine("tokenfeed"), "tiktoken": by_engine("tiktoken")}
    if threads <= 2:  # those that take all cores can be compared with one or with all
        makers |= {"fastokens": fastokens} if find_spec("fastokens") else {}
        makers |= {"gigatoken": gigatoken} if find_spec("gigatoken") and pattern in SCHEMES else {}
    makers = {name: make for name, make in makers.items() if only is None or name in ("tokenfeed", only)}
    with tempfile.TemporaryDirectory() as folder:
        ranks = Path(folder, "ranks.tiktoken")
        lines = [b"%b %d\n" % (base64.b64encode(token), rank) for token, rank in vocabulary.ranks.items()]
        ranks.write_bytes(b"".join(lines))

        def rate(make: Callable[[Vocabulary, Path], Encode]) -> float:
            encode = make(vocabulary, ranks)
            encode(["first use"], 1)
            began = time.perf_counter()
            for first in range(0, len(texts), BATCH):
                encode(texts[first : first + BATCH], threads)
            return megabytes / (time.perf_counter() - began)

        contenders = {name: lambda _, make=make: rate(make) for name, make in makers.items()}
        result = interleave(contenders, repetitions=rounds, unit="MB/s")
    for name, series in result.items():
        if name != "tokenfeed":
            report.compare(f"{pattern}, threads {threads}: {name}", result["tokenfeed"], series, bar=BARS[name])


def variations(encoded: list[bytes], gigabytes: float) -> Iterator[list[str]]:
    """So much text in batches, of which no two passes have the same words: other letters, digits and characters.

    UTF-8 stays valid if the lowest three bits of continuation bytes change.
    """
    rng, left = np.random.default_rng(0), gigabytes * 1e9
    while True:
        table = np.arange(256, dtype=np.uint8)
        table[0x80:0xC0] ^= rng.integers(8, dtype=np.uint8)
        table[48:58] = rng.permutation(table[48:58])
        pairs = rng.permutation(26)[:8].reshape(2, 4)
        for first in (65, 97):
            table[first + pairs], table[first + pairs[::-1]] = table[first + pairs[::-1]], table[first + pairs]
        for first in range(0, len(encoded), BATCH // 8):
            if left <= 0:
                return
            batch = encoded[first : first + BATCH // 8]
            left -= sum(map(len, batch))
            yield [text.translate(table.tobytes()).decode() for text in batch]


def private_now() -> float:
    """MB that this process has written to and shares with none. Pages of libraries come and go with other processes."""
    lines = Path("/proc/self/smaps_rollup").read_text()
    return int(re.search(r"Private_Dirty: +(\d+) kB", lines)[1]) * 1024 / 1e6


def private_memory(encoded: list[bytes], vocabulary: Vocabulary, gigabytes: float, threads: int) -> list[float]:
    """Private MB beyond those before the first text, at ten intervals of so much text that is different throughout."""
    tokenizer = Tokenizer(vocabulary)
    tokenizer.encode("first use")
    for _ in variations(encoded, min(1.0, gigabytes)):  # what changing texts takes is there before
        pass
    before, seen, done = private_now(), [], 0
    for batch in variations(encoded, gigabytes):
        tokenizer.encode_batch(batch, threads=threads)
        done += sum(map(len, batch))
        if len(seen) < 10 and done >= (len(seen) + 1) * gigabytes * 8e7:  # characters are fewer than bytes
            seen.append(private_now() - before)
            print(f"{done / 1e9:.2f} G characters: {seen[-1]:.1f} MB", file=sys.stderr, flush=True)
    return [*seen, private_now() - before]


def flat(report: Report, seen: list[float], threads: int) -> None:
    report.limit(f"private memory beyond the vocabulary, threads {threads}", [max(seen)], "MB", bar=MEMORY_BAR)
    report.limit(f"its growth after the first tenth, threads {threads}", [seen[-1] - seen[0]], "MB", bar=GROWTH_BAR)


def memory(report: Report, arguments: list[str], gigabytes: float) -> None:
    """Private memory with 1, 2 and 16 threads, each in a process of its own."""
    for threads in MEMORY_THREADS:
        command = [sys.executable, __file__, *arguments, "--flat", str(gigabytes), "--threads", str(threads), "--bare"]
        flat(report, json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout), threads)


def first_use(report: Report, vocabulary: Vocabulary) -> None:
    began = time.perf_counter()
    Tokenizer(vocabulary).encode("first use")
    report.limit("first use, kernels cached", [time.perf_counter() - began], "s", bar=0.3)


def read_ranks(path: Path) -> dict[bytes, int]:
    data = path.read_bytes()
    lines = (gzip.decompress(data) if path.suffix == ".gz" else data).split(b"\n")
    return {base64.b64decode(token): int(rank) for token, _, rank in (line.partition(b" ") for line in lines) if rank}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--text", type=Path)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--patterns", default="nanochat,gpt4,gpt4o")
    parser.add_argument("--only", help="one other engine to compare with, such as fastokens; nothing else is measured")
    parser.add_argument("--ranks", type=Path)
    parser.add_argument("--flat", type=float, metavar="GB")
    parser.add_argument("--bare", action="store_true", help="with --flat: the figures alone, as JSON")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    report = Report("tokenizers")
    folder = find_text(arguments.text, 4 if arguments.quick else 50)
    groups = TextFiles.find(folder, split="all").iter_row_groups()
    texts = [text for group in groups for text in group if text is not None]
    encoded = [text.encode() for text in texts]
    known = find_tokenizer(folder).vocabulary.ranks
    counts = list(map(int, arguments.threads.split(",")))
    vocabularies = {name: Vocabulary(known, PATTERNS[name], {}) for name in arguments.patterns.split(",")}
    if arguments.ranks and "gpt4" in vocabularies:
        vocabularies["gpt4"] = Vocabulary(read_ranks(arguments.ranks), PATTERNS["gpt4"], {})
    first = next(iter(vocabularies.values()))
    if arguments.flat:
        texts.clear()
        seen = private_memory(encoded, first, arguments.flat, counts[0])
        if arguments.bare:
            print(json.dumps(seen))
            return
        flat(report, seen, counts[0])
    else:
        if not arguments.only:
            first_use(report, first)
        for pattern, vocabulary in vocabularies.items():
            for threads in counts:
                rates(report, texts, vocabulary, pattern, threads, 2 if arguments.quick else 5, arguments.only)
        if not arguments.only:
            given = [f"--{name}={value}" for name, value in vars(arguments).items() if name in ("text",) and value]
            memory(report, [*given, *["--quick"] * arguments.quick], 0.1 if arguments.quick else 1)
            report.limit("tokens of our own and of tiktoken that differ", [_differences(texts, first)], "", bar=0)
    report.show()
    if arguments.json:
        report.write_json(arguments.json)
    if report.missed and not arguments.quick:
        sys.exit(f"missed: {', '.join(report.missed)}")


def _differences(texts: list[str], vocabulary: Vocabulary) -> int:
    ours, theirs = (Tokenizer(vocabulary, engine=engine).encode_batch(texts)[0] for engine in ("tokenfeed", "tiktoken"))
    return int(np.count_nonzero(ours != theirs)) if len(ours) == len(theirs) else max(len(ours), len(theirs))


if __name__ == "__main__":
    main()
