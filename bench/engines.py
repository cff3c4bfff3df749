"""Measures engines: `python bench/engines.py [--quick] [--text FOLDER] [--threads 1,2,4,8,16] [--json PATH]`.

MB of text a second into a NumPy array, cold: each engine is made again for every pass, and sees each text once. Ours
and tiktoken, and fastokens and gigatoken where they are installed; by turns. `--text` is a folder of Parquet files with
a column `text`; unless given, Python sources of this machine are taken. Exit status 1 if a bar is missed; `--quick`
takes little text and few repetitions, and enforces nothing.
"""

import argparse
import base64
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from measure import Report, interleave
from text import find_text, find_tokenizer
from tokenfeed.text.sources.files import TextFiles
from tokenfeed.text.tokenizer.tokenizer import Tokenizer
from tokenfeed.text.tokenizer.vocabulary import PATTERNS, Vocabulary

Encode = Callable[[list[str], int], Any]
BATCH = 4096
BARS = {"fastokens": 1.6, "gigatoken": 1.0, "tiktoken": 4.0}
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


def rates(report: Report, texts: list[str], vocabulary: Vocabulary, pattern: str, threads: int, rounds: int) -> None:
    """All engines on one pattern, by turns."""
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    makers = {"tokenfeed": by_engine("tokenfeed"), "tiktoken": by_engine("tiktoken")}
    if threads <= 2:  # those that take all cores can be compared with one or with all
        makers |= {"fastokens": fastokens} if find_spec("fastokens") else {}
        makers |= {"gigatoken": gigatoken} if find_spec("gigatoken") and pattern in SCHEMES else {}
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


def memory(report: Report, texts: list[str], vocabulary: Vocabulary, threads: int) -> None:
    """Memory after one pass and after five more of other text; and the time of a first use."""
    began = time.perf_counter()
    tokenizer = Tokenizer(vocabulary)
    tokenizer.encode("first use")
    report.limit("first use, kernels cached", [time.perf_counter() - began], "s", bar=0.3)
    private = lambda: psutil.Process().memory_info().rss / 1e6  # noqa: E731
    before, seen = private(), []
    for _ in range(6):
        for first in range(0, len(texts), BATCH):
            tokenizer.encode_batch(texts[first : first + BATCH], threads=threads)
        seen.append(private() - before)
        texts = [text[::-1] for text in texts]
    report.limit(f"memory beyond the vocabulary, threads {threads}", [seen[-1]], "MB", bar=64)
    report.limit("its growth after the first pass", [seen[-1] - seen[1]], "MB", bar=16)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--text", type=Path)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--patterns", default="nanochat,gpt4,gpt4o")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    report = Report("tokenizers")
    folder = find_text(arguments.text, 4 if arguments.quick else 50)
    groups = TextFiles.find(folder, split="all").iter_row_groups()
    texts = [text for group in groups for text in group if text is not None]
    known = find_tokenizer(folder).vocabulary.ranks
    for pattern in arguments.patterns.split(","):
        vocabulary = Vocabulary(known, PATTERNS[pattern], {})
        for threads in map(int, arguments.threads.split(",")):
            rates(report, texts, vocabulary, pattern, threads, 2 if arguments.quick else 5)
    memory(report, texts, vocabulary, max(map(int, arguments.threads.split(","))))
    report.limit("tokens of our own and of tiktoken that differ", [_differences(texts, vocabulary)], "", bar=0)
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
