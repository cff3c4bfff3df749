"""Plain text: one file is one document, UTF-8, with or without a byte-order mark."""

import codecs
from collections.abc import Iterator

from tokenfeed.preparation.inputs import InputFile, Slice
from tokenfeed.preparation.reading_chunks import Chunk, Reading, Tally, in_pieces
from tokenfeed.preparation.reading_files import Source, shown

__all__ = ["read_text"]


def read_text(file: InputFile, part: Slice, how: Reading) -> Iterator[Chunk]:
    """The file as one document, decoded as it is read. With on_error="skip" it is read twice, the first time to see
    that all of it is UTF-8."""
    tally = Tally(how)
    kept = dict.fromkeys(how.keep)
    try:
        if how.on_error == "skip":
            for _ in _decode(file, how):
                pass
        pieces = _decode(file, how)
        texts = ((("".join(text for text, _ in pieces)), part.stop) for _ in range(1)) if how.whole else pieces
        reached = 0

        def strings() -> Iterator[str]:
            nonlocal reached
            for text, reached in texts:  # noqa: B007
                yield text

        for piece, begins, ends in in_pieces(strings()):
            yield tally.chunk([piece], [dict(kept) if begins else None], reached, part=(begins, ends))
    except UnicodeDecodeError as error:
        tally.malformed(shown(file.path), f"it is not UTF-8 ({error.reason})", cause=error)
    yield tally.chunk([], [], part.stop - part.start)


def _decode(file: InputFile, how: Reading) -> Iterator[tuple[str, int]]:
    """(text, bytes of the file read so far)."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    with Source(file.path) as source:
        num_bytes = how.long_bytes  # a document that is not longer comes whole
        while data := source.read(num_bytes):
            yield decoder.decode(data), source.stored_position()
            num_bytes = how.chunk_bytes
        yield decoder.decode(b"", True), source.stored_position()
