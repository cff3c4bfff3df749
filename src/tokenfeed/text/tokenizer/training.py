"""Learning a vocabulary from text, as nanochat does: rustbpe, fed one text at a time."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec

from tokenfeed.errors import ArgumentError, DependencyError
from tokenfeed.text.tokenizer.pieces import cut_runs, join_surrogates
from tokenfeed.text.tokenizer.vocabulary import Vocabulary

__all__ = ["train_vocabulary"]

_REPORT_EVERY = 256
_BUFFERED_TEXTS = 8192  # rustbpe's own default: this many are copied, then counted on all cores without the GIL


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

    `limits` are `doc_cap` and `max_chars`. Texts are read once and never held together. Ctrl-C works while they are
    read; the merging after that, some 10 s for 32,768 tokens, is not interrupted.
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
    import rustbpe

    trainer = rustbpe.Tokenizer()
    num_chars = 0

    def pieces() -> Iterator[str]:
        nonlocal num_chars
        for number, text in enumerate(texts):
            if not isinstance(text, str):
                raise ArgumentError(f"text {number} is a {type(text).__name__}, not a str; leave it out")
            used = text[: limits["doc_cap"]]
            num_chars += len(used)
            yield from cut_runs(join_surrogates(used))
            if number % _REPORT_EVERY == 0:
                report(f"{number + 1:,} documents, {num_chars / 1e6:,.1f} M characters")
            if num_chars > (limits["max_chars"] or num_chars):
                return

    with _reporting(progress) as report:
        try:
            trainer.train_from_iterator(pieces(), num_ranks, buffer_size=_BUFFERED_TEXTS, pattern=pattern)
        except ValueError as error:
            if "regex" not in str(error):
                raise
            raise ArgumentError(f"the pattern {pattern!r} is not a regular expression: {error}") from error
    if not num_chars:
        raise ArgumentError("texts is empty; there is nothing to learn from")
    ranks = {bytes(token): rank for token, rank in trainer.get_mergeable_ranks()}
    return Vocabulary(ranks, pattern, {name: len(ranks) + i for i, name in enumerate(special_tokens)}, bos)


@contextlib.contextmanager
def _reporting(progress: bool) -> Iterator[Callable[[str], None]]:
    """A line on standard error that says how much was read; nothing where that is not a terminal."""
    if not progress:
        yield lambda read: None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("learning tokens  {task.description}"), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("0 documents")
        yield lambda read: bar.update(task, description=read)
