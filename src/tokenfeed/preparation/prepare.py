"""`prepare`: text files to a store of tokens."""

import contextlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any, Literal

import numpy as np

from tokenfeed.errors import ArgumentError, quantity
from tokenfeed.preparation.documents import Task, WorkerSetup
from tokenfeed.preparation.engines import make_engine
from tokenfeed.preparation.inputs import InputFile, cut, split_inputs
from tokenfeed.preparation.mapping import MapFunction, MapOrigin, check_declared, refuse_while_loading
from tokenfeed.preparation.records import SHARD_BYTES, PreparePlan, Recipe, choose_slice_bytes, slice_name
from tokenfeed.preparation.report import Board, Report
from tokenfeed.preparation.tokens import TOKEN_ENDINGS
from tokenfeed.preparation.workplace import Workplace
from tokenfeed.store.describe import describe_growth
from tokenfeed.store.sealing import unseal
from tokenfeed.text.chat.rendering import Chat, ChatRecords
from tokenfeed.text.chat.template import ChatTemplate
from tokenfeed.text.sources.files import first_record
from tokenfeed.text.sources.finding import CHAT_ENDINGS, ENDINGS, PathLike
from tokenfeed.text.sources.portions import TextRules
from tokenfeed.text.sources.splitting import Val
from tokenfeed.text.tokenizer.tokenizer import Tokenizer
from tokenfeed.version import __version__

__all__ = ["prepare"]

_CUTTING_THREADS = 16


def prepare(
    inputs: Any,
    out: PathLike,
    *,
    tokenizer: Tokenizer | PathLike | None = None,
    text_column: str = "text",
    tokens_column: str | None = None,
    keep: Sequence[str] = (),
    bos: str | None = None,
    eos: str | None = None,
    separator: Literal["auto"] | None = "auto",
    dtype: Any = None,
    val: Val = 0.001,
    map: str | Callable[..., Any] | None = None,  # noqa: A002
    chat: Chat | ChatTemplate | PathLike | bool = False,
    workers: int | None = None,
    engine: str = "local",
    on_error: Literal["fail", "skip"] = "fail",
    part: tuple[int, int] | None = None,
    replace_changed: bool = False,
    dry_run: bool = False,
    slice_bytes: int | None = None,
    shard_bytes: int = SHARD_BYTES,
    progress: Callable[[Report], object] | None = None,
) -> Report:
    """Turn text into a store: Parquet, JSONL and plain text, compressed or not, local or remote.

    `inputs` is a file, a folder, a pattern, an address, or a list of these; or documents of this process: a
    `datasets.Dataset`, a list of mappings, a function that makes an iterator. The same inputs and settings make the
    same bytes, with any `workers` and either `engine`. To continue after a crash, run it again: it does what is
    missing. Inputs may be added at the end later. A changed input is an error; `replace_changed` redoes its part of the
    store.

    `keep` names columns that become the payload of a document. Documents begin with the special token `bos` and end
    with `eos`; if you name neither, with the tokenizer's own BOS, or else its own EOS after them. A tokenizer without
    either is refused; `separator=None` puts nothing between documents. The dtype is the narrowest for the vocabulary.

    `tokens_column` names a column of lists of ids instead of text, in Parquet, Arrow or JSONL files: they become
    documents as they are, with `bos` and `eos` around them if you name these. The tokenizer is then optional: if it is
    given, the store knows it, and ids that it does not have are refused; else those that do not fit `dtype`, uint32.

    `val` goes into the split of that name, the rest into `train`: a share of the documents, chosen by a hash of their
    text, as `stream` does; files, by name or pattern; "last" for the last file; None for no more than names say. Files
    that are called val or test, or lie in such a folder, are never train, and where one is called val, no share of the
    others is held out; () takes all files as data, and makes no splits. `map` is a function of your own (see
    `preparation/mapping.py`), or "file.py:function".

    `chat` says that the inputs are conversations, in one of the layouts of `text/chat/layouts.py`: True, a template, or
    a `tokenfeed.text.Chat` with all settings. Each becomes a document, written by the model's own chat template, with a
    column `loss_mask`, which every view of the store uses; of preference pairs, both sides are one document.

    A malformed line (no JSON, no such key, no UTF-8) is a FormatError that names the file and the line;
    `on_error="skip"` leaves such lines out and counts them; so it is with a conversation that the template refuses, or
    in which nothing is learned. A null text is left out and counted in either case.

    `workers` slices are made at a time, by default one a core: up to four by threads of this process, more, or with a
    map function, by processes (`engine="processes"`: always); 0 makes one after the other. `engine="ray"` is a cluster.
    `part=(i, n)` does every n-th slice from the i-th on; the run that does the last one seals the store. A worker takes
    less than 400 MB, most of it Numba's and the tokenizer's, whatever the size of files, and several times its largest
    document beside. A document has at most 1 GiB.

    `progress` is called with a report about ten times a second. `dry_run` only reports what there is to do.
    `slice_bytes` of input are one task, by default 8 to 256 MiB, by how much there is.
    """
    refuse_while_loading()
    _check_part(part, replace_changed)
    store = os.fspath(out)
    loaded = _find_tokenizer(tokenizer, tokens_column, bos or eos)
    reading = _find_chat(chat, tokenizer, loaded, {"map": map, "tokens_column": tokens_column, "bos": bos, "eos": eos})
    as_they_are = reading is not None or (tokens_column is not None and not (bos or eos))
    begin, end = (None, None) if loaded is None or as_they_are else loaded.separators(bos, eos, separator)
    if tokens_column is not None and map is not None:
        raise ArgumentError("map is for text; with tokens_column there is none. Leave one of them out.")
    function, origin = _find_map(map, can_stay=engine == "local" and workers == 0)
    chosen = make_engine(engine, workers, function)
    endings = TOKEN_ENDINGS if tokens_column is not None else ENDINGS if reading is None else CHAT_ENDINGS
    files, splits = split_inputs(inputs, val, endings)
    if reading is not None:
        reading = reading.with_layout(*(({}, "") if reading.layout else first_record(inputs)))
    chosen_dtype = _find_dtype(loaded, dtype)
    num_ids = loaded.vocab_size if loaded is not None else int(np.iinfo(chosen_dtype).max) + 1
    workplace = Workplace(store)
    recipe = Recipe(
        tokenizer=None if loaded is None else loaded.digest,
        dtype=chosen_dtype,
        bos=begin,
        eos=end,
        text_column=tokens_column or text_column,
        num_ids=None if tokens_column is None else num_ids,
        keep=(keep,) if isinstance(keep, str) else tuple(keep),
        val=splits.fraction,
        map=None if function is None else function.name if origin is None else origin.name,
        slice_bytes=_find_slice_bytes(workplace, files) if slice_bytes is None else slice_bytes,
        shard_bytes=shard_bytes,
        chat=None if reading is None else reading.name,
    )
    TextRules(recipe.text_column, recipe.keep, on_error)  # refuses what cannot be meant before anything is made
    provenance = {"made_by": "tokenfeed prepare", "tokenfeed": __version__, "recipe": asdict(recipe)}
    setup = WorkerSetup(store, recipe, loaded, provenance, on_error, origin, reading)
    tasks = _cut_all(recipe, files, reading)
    board = Board(str(workplace.folder), files, tasks, progress, splits)
    plan = PreparePlan(recipe, files)
    is_local = workplace.folder.local is not None
    changed = workplace.check_plan(plan, replace_changed=replace_changed, is_alone=is_local)  # before anything is made
    if dry_run:
        _find_done(workplace, board, [task for task in tasks if task.slice.file not in changed])
        return board.report(is_complete=board.is_done and workplace.is_complete(board.records.values()))
    workplace.make()
    with workplace.lock as held:
        held.take(exclusive=part is None)
        workplace.agree_on_plan(plan, replace_changed=replace_changed, is_alone=held.is_alone())
        setup.open_writer(None, None, function).close()  # makes the manifest
        _find_done(workplace, board, tasks)
        if not board.is_done and workplace.is_sealed():  # perhaps by a run that has done the rest meanwhile
            _find_done(workplace, board, tasks)
            if not board.is_done:
                unseal(workplace.folder, sync=True)
        held.take(exclusive=False)  # lets the workers in
        mine = tasks if part is None else tasks[part[0] :: part[1]]
        if missing := [task for task in mine if task not in board.records]:
            with contextlib.closing(chosen(setup, missing, board.tell)) as records:
                for record in records:
                    board.done(record)
        if part is not None and not board.is_done:  # others may have done the rest meanwhile
            _find_done(workplace, board, tasks)
        report = board.report(is_complete=board.is_done)
        if report.is_complete and not report.total.documents:
            raise ArgumentError(
                f"there is no document in the inputs: {quantity(len(files), 'file')}, {report.num_bytes:,} bytes, "
                f"{report.left_out:,} left out. The store was not sealed."
            )
        if board.is_done and workplace.complete(plan, board.records.values()):
            report.growth = describe_growth(str(workplace.folder))
        if held.is_alone():
            workplace.sweep()
        return report


def _find_done(workplace: Workplace, board: Board, tasks: Sequence[Task]) -> None:
    """Note those of the tasks that are done and not noted yet."""
    records = workplace.load_records() if tasks else {}
    for task in [task for task in tasks if task not in board.records]:
        record = records.get(slice_name(task.slice))
        if record is not None and (record.slice, record.input_digest) == (task.slice, task.file.digest):
            board.was_done(record)


def _cut_all(recipe: Recipe, files: Sequence[InputFile], records: ChatRecords | None) -> list[Task]:
    """The slices of all files, in order. Parquet needs a look at each footer, several at a time."""

    def cut_one(numbered: tuple[int, InputFile]) -> list[Task]:
        number, file = numbered
        what: dict[str, Any] = {"text_column": recipe.text_column, "num_ids": recipe.num_ids, "records": records}
        slices = cut(number, file, slice_bytes=recipe.slice_bytes, **what)
        return [Task(file, one) for one in slices]

    with ThreadPoolExecutor(min(_CUTTING_THREADS, max(1, len(files)))) as pool:
        return [task for tasks in pool.map(cut_one, enumerate(files)) for task in tasks]


def _find_map(given: str | Callable[..., Any] | None, *, can_stay: bool) -> tuple[MapFunction | None, MapOrigin | None]:
    """The function here, and where other processes get it from; None where it need not travel and cannot."""
    if given is None:
        return None, None
    if isinstance(given, str):
        origin = MapOrigin.find(given)
        return origin.load(), origin
    function = check_declared(given, str(given))
    try:
        return function, MapOrigin.find(function)
    except ArgumentError:
        if not can_stay:
            raise
        return function, None


def _find_chat(
    chat: Chat | ChatTemplate | PathLike | bool,
    tokenizer: Tokenizer | PathLike | None,
    loaded: Tokenizer | None,
    others: dict[str, object],
) -> ChatRecords | None:
    if chat is False:
        return None
    if given := [name for name, value in others.items() if value is not None]:
        raise ArgumentError(
            f"{given[0]} does not go with chat: the template writes conversations. Leave one of them out"
        )
    assert tokenizer is not None
    return Chat.of(chat).open(tokenizer, loaded)


def _find_slice_bytes(workplace: Workplace, files: Sequence[InputFile]) -> int:
    """The size chosen when the store was begun; else by the size of the inputs."""
    before = workplace.load_plan()
    return choose_slice_bytes(sum(file.size for file in files)) if before is None else before.recipe.slice_bytes


def _find_tokenizer(
    given: Tokenizer | PathLike | None, tokens_column: str | None, around: str | None
) -> Tokenizer | None:
    if given is None and tokens_column is None:
        raise ArgumentError("tokenizer is missing; only inputs that are tokenised already (tokens_column=…) need none")
    if given is None and around:
        raise ArgumentError(f"{around!r} needs a tokenizer that knows it; give tokenizer=… too")
    return None if given is None else Tokenizer.of(given)


def _find_dtype(tokenizer: Tokenizer | None, dtype: Any) -> str:
    if dtype is None:
        return "uint32" if tokenizer is None else tokenizer.dtype.name
    try:
        name: str = np.dtype(dtype).name
    except TypeError as error:
        raise ArgumentError(f"dtype is {dtype!r}, which is no dtype: {error}") from error
    if tokenizer is not None:
        tokenizer.encode_batch([], dtype=name)  # refuses what cannot hold the vocabulary
    elif np.dtype(name).kind not in "iu":
        raise ArgumentError(f"dtype is {name}; tokens need an integer dtype")
    return name


def _check_part(part: tuple[int, int] | None, replace_changed: bool) -> None:
    if part is None:
        return
    number, count = part
    if not 0 <= number < count:
        raise ArgumentError(f"part is {number} of {count}; the first is 0 of {count}, the last {count - 1} of {count}")
    if replace_changed:
        raise ArgumentError("replace_changed is for a run that does all parts: no other run may work at the same time")
