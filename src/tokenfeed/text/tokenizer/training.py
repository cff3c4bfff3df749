"""Learning a vocabulary from text, as nanochat does: rustbpe, fed one text at a time."""

import base64
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec

from tokenfeed.errors import ArgumentError, DependencyError, WorkerError
from tokenfeed.text.tokenizer.pieces import cut_runs, join_surrogates
from tokenfeed.text.tokenizer.vocabulary import Vocabulary

__all__ = ["train_vocabulary"]

_LONGEST_RUN = 65_536  # characters: its regular expressions overflow on runs of a million
_REPORT_EVERY = 256
_LINE_SECONDS = 5.0
# 8,192 texts, rustbpe's own default, are copied, then counted on all cores.
_CODE = """
import base64, json, sys
sys.path[:] = json.loads(sys.argv[1])
import rustbpe
read = sys.stdin.buffer.read
texts = (read(int.from_bytes(size, "little")).decode() for size in iter(lambda: read(8), b""))
trainer = rustbpe.Tokenizer()
try:
    trainer.train_from_iterator(texts, int(sys.argv[3]), buffer_size=8192, pattern=sys.argv[2])
except ValueError as error:
    sys.exit(str(error))
ranks = sorted(trainer.get_mergeable_ranks(), key=lambda item: item[1])
sys.stdout.write("\\n".join(base64.b64encode(bytes(token)).decode() for token, _ in ranks))
"""


def train_vocabulary(
    texts: Iterable[str],
    vocab_size: int,
    pattern: str,
    special_tokens: Sequence[str],
    bos: str | None,
    limits: Mapping[str, int | None],
    *,
    progress: bool = False,
) -> Vocabulary:
    """A vocabulary of `vocab_size` tokens: the bytes, the learned tokens, then the special tokens.

    `limits` are `doc_cap` and `max_chars`. Texts are read once and never held together. Ctrl-C works at any time.
    """
    if isinstance(texts, str):
        raise ArgumentError("texts is one str; expected an iterable of them")
    num_ranks = vocab_size - len(special_tokens)
    if num_ranks < 256:
        raise ArgumentError(
            f"vocab_size is {vocab_size}; 256 bytes and {len(special_tokens)} special tokens need at least "
            f"{256 + len(special_tokens)}"
        )
    if len(set(special_tokens)) < len(special_tokens):
        raise ArgumentError(f"special_tokens names a token twice: {list(special_tokens)}")
    if bos is not None and bos not in special_tokens:
        raise ArgumentError(f"bos {bos!r} is not among special_tokens: {list(special_tokens)}")
    for name, limit in limits.items():
        if limit is not None and limit < 1:
            raise ArgumentError(f"{name} is {limit}; at least 1 is needed, or None for all")
    if not find_spec("rustbpe"):
        raise DependencyError("training a vocabulary needs rustbpe; pip install 'tokenfeed[text]'")
    num_chars = 0

    def pieces() -> Iterator[str]:
        nonlocal num_chars
        for number, text in enumerate(texts):
            if not isinstance(text, str):
                raise ArgumentError(f"text {number} is a {type(text).__name__}, not a str; leave it out")
            used = text[: limits["doc_cap"]]
            num_chars += len(used)
            yield from cut_runs(join_surrogates(used), _LONGEST_RUN)
            if number % _REPORT_EVERY == 0:
                report(f"reading  {number + 1:,} documents, {num_chars / 1e6:,.1f} M characters", False)
            if num_chars > (limits["max_chars"] or num_chars):
                break
        report(f"merging  {num_ranks - 256:,} tokens from {num_chars / 1e6:,.1f} M characters", True)

    with _reporting(progress) as report:
        ranks = _learn(pieces(), num_ranks, pattern)
    if not num_chars:
        raise ArgumentError("texts is empty; there is nothing to learn from")
    return Vocabulary(ranks, pattern, {name: len(ranks) + i for i, name in enumerate(special_tokens)}, bos)


def _learn(pieces: Iterable[str], num_ranks: int, pattern: str) -> dict[bytes, int]:
    """Ranks, learnt by a process that can be killed: rustbpe merges for seconds with the GIL held, deaf to Ctrl-C."""
    command = [sys.executable, "-c", _CODE, json.dumps(sys.path), pattern, str(num_ranks)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, process_group=0) as process:
        assert process.stdin is not None
        try:
            with contextlib.suppress(BrokenPipeError):  # it has ended, and says why
                for piece in pieces:
                    data = piece.encode()
                    process.stdin.write(len(data).to_bytes(8, "little") + data)
            output, errors = process.communicate()
        except BaseException:
            process.kill()
            with contextlib.suppress(BrokenPipeError):  # of what was buffered for it
                process.stdin.close()
            raise
    if process.returncode:
        message = errors.decode(errors="replace").strip().rpartition("\n")[2]  # of a traceback, the error
        if "regex" in message:
            raise ArgumentError(f"the pattern {pattern!r} is not a regular expression: {message}")
        ended = f"the process that learns tokens ended with status {process.returncode}"
        raise WorkerError(f"{ended}: {message.rpartition(chr(10))[2] or 'if memory ran out, give it less text'}")
    return {base64.b64decode(token): rank for rank, token in enumerate(output.splitlines())}


@contextlib.contextmanager
def _reporting(progress: bool) -> Iterator[Callable[[str, bool], object]]:
    """Shows on standard error how far it has come; a line now and then where that is not a terminal."""
    if not progress:
        yield lambda stage, is_new: None
        return
    from rich.console import Console

    console, told = Console(stderr=True), time.monotonic()
    if not console.is_terminal:

        def tell(stage: str, is_new: bool) -> None:
            nonlocal told
            if is_new or time.monotonic() - told >= _LINE_SECONDS:
                told = time.monotonic()
                print(stage, file=sys.stderr, flush=True)

        yield tell
        return
    with console.status("reading  0 documents") as status:
        yield lambda stage, is_new: status.update(stage)
