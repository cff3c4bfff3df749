"""Documents of this process as a source: for streams, for `prepare`, exact and with a clear answer to what is not."""

import datasets
import numpy as np
import pytest

import tokenfeed
from golden import golden_tokenizer
from oracle import Leg, run
from tokenfeed.errors import ArgumentError, FormatError, MissingError, PlanMismatchError
from tokenfeed.preparation.prepare import prepare
from tokenfeed.text.sources import memory

TEXTS = [f"document {number} " + "word " * (number % 13) for number in range(180)]
ROWS = [{"id": number, "text": text} for number, text in enumerate(TEXTS)]


class Squares:
    """A map-style dataset, as torch has them: a length and an index, and no slices."""

    def __len__(self):
        return len(ROWS)

    def __getitem__(self, index):
        if not 0 <= index < len(ROWS):
            raise IndexError(index)
        return ROWS[index]


class Again:
    """Can be iterated any number of times, and has no length."""

    def __iter__(self):
        return iter(TEXTS)


def generate():
    yield from ROWS


KINDS = {
    "a list of mappings": lambda: ROWS,
    "a dataset": lambda: datasets.Dataset.from_list(ROWS),
    "an iterable dataset": lambda: datasets.Dataset.from_list(ROWS).to_iterable_dataset(),
    "a map-style dataset": Squares,
    "an iterable": Again,
    "a function": lambda: generate,
}


@pytest.fixture(autouse=True)
def small_groups(monkeypatch):
    monkeypatch.setattr(memory, "GROUP_ROWS", 16)


def make(source, **options):
    how = {"batch_size": 2, "length": 32, "buffer_size": 8, "refill_size": 4, "split": "all"}
    return tokenfeed.stream(source, golden_tokenizer("tiktoken"), **{**how, **options})


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_of_them_is_that_of_a_file(kind, tmp_path):
    """The same rows from every kind, through resumes on the same ranks and on others, and into the second epoch."""
    history = [Leg(2, 2, 15), Leg(3, 2, 25, 2)]
    expected = run(history, lambda **how: make(ROWS, **how), per_rank=True)
    assert run(history, lambda **how: make(KINDS[kind](), **how), per_rank=True) == expected
    assert max(row.epoch for row in expected) >= 1
    counted = sum(int(batch.loss_mask.sum()) for batch in make(KINDS[kind](), epochs=1, rank=0, world_size=1))
    assert counted == sum(len(golden_tokenizer("tiktoken").encode(text)) for text in TEXTS)


@pytest.mark.parametrize("kind", KINDS)
def test_prepare_makes_the_same_store_of_them(kind, tmp_path):
    keep = [] if kind == "an iterable" else ["id"]
    report = prepare(KINDS[kind](), tmp_path / "store", tokenizer=golden_tokenizer("tiktoken"), keep=keep, val=None)
    assert report.is_complete
    store = tokenfeed.open(tmp_path / "store")
    documents = store.documents()
    assert [golden_tokenizer("tiktoken").decode(documents[n].tokens[1:]) for n in range(0, 180, 37)] == TEXTS[::37]
    again = prepare(KINDS[kind](), tmp_path / "store", tokenizer=golden_tokenizer("tiktoken"), keep=keep, val=None)
    assert again.is_complete


def test_token_ids(tmp_path):
    rows = [{"input_ids": [number, number + 1], "id": number} for number in range(50)]
    prepare(datasets.Dataset.from_list(rows), tmp_path / "store", tokens_column="input_ids", keep=["id"], val=None)
    prepare(lambda: iter(rows), tmp_path / "other", tokens_column="input_ids", keep=["id"], val=None)
    stores = [tokenfeed.open(tmp_path / name) for name in ("store", "other")]
    for store in stores:
        assert store.num_items == 100
        assert np.array_equal(store.documents()[49].tokens, [49, 50])


def test_a_checkpoint_of_other_documents_is_refused():
    feed = make(ROWS, rank=0, world_size=1)
    next(feed)
    state = feed.state_dict()
    others = [{"id": 0, "text": "other"}, *ROWS[1:]]
    with pytest.raises(PlanMismatchError, match="is not the file that the checkpoint was made from"):
        make(others, rank=0, world_size=1).load_state_dict(state)


def test_a_mixture_of_files_and_documents(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "from a file"}\n' * 40)
    batch = next(make({"file": (tmp_path, 1), "memory": (generate, 3)}, batch_size=8, rank=0, world_size=1))
    assert np.bincount(batch.sources).tolist() == [2, 6]


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        (lambda: generate(), ArgumentError, "generator can be iterated once"),
        (lambda: [1, 2], ArgumentError, "1' is no path"),
        (lambda: 7, ArgumentError, "holds no text"),
        (lambda: [{"txt": "a"}], MissingError, "there is no 'text'; there are txt"),
        (lambda: [{"text": 1}], FormatError, "row 0: the text is int, not a string"),
        (lambda: [{"text": b"\xff"}], FormatError, "is not UTF-8"),
        (lambda: datasets.Dataset.from_list([{"input_ids": [1]}]), MissingError, "tokens_column='input_ids'"),
        (lambda: lambda: 3, ArgumentError, "int cannot be iterated"),
    ],
)
def test_what_cannot_be_read(source, error, message):
    given = source()
    if message.startswith("generator"):
        given = generate()
    with pytest.raises(error, match=message):
        next(make(given, rank=0, world_size=1, prefetch=0))


def test_paths_from_a_generator_are_paths(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "from a file"}\n' * 40)
    assert len(next(make(tmp_path.glob("*.jsonl"), rank=0, world_size=1))) == 2
