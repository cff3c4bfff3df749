"""What the page shows of a store is what is in it: samples, documents, packed rows."""

import tracemalloc

import numpy as np
import pytest

import tokenfeed
from golden import golden_tokenizer
from plain import write_many_shards
from tokenfeed.errors import ArgumentError, MissingError, NotAStoreError, NotFoundError, SampleIndexError
from tokenfeed.store.spans import SpanTable
from tokenfeed.store.store import Store
from tokenfeed.text.tokenizer.tokenizer import Tokenizer
from tokenfeed.ui.documents import list_documents
from tokenfeed.ui.messages import Query
from tokenfeed.ui.overview import describe_store
from tokenfeed.ui.packing import pack_some, show_waste
from tokenfeed.ui.samples import show_sample, show_tokens
from tokenfeed.ui.subject import open_subject


@pytest.fixture
def subject(store_path):
    return open_subject(str(store_path))


def query(**parameters):
    return Query({name: str(value) for name, value in parameters.items()})


def ids(told):
    return [token[0] for token in told["tokens"]]


def spans(told, table):
    return [(one["number"], one["start"], one["stop"]) for one in told["spans"][table]["spans"]]


def test_the_store_as_a_whole(subject, plain):
    told = describe_store(subject, query())
    assert told["items"] == plain.tokens.size
    assert told["shards"] == len(subject[Store].shards) > 3
    assert [column["bytes"] for column in told["columns"]] == [2 * plain.tokens.size, 6 * plain.tokens.size]
    assert [table["spans"] for table in told["spans"]] == [120, len(plain.table("concepts"))]


@pytest.mark.parametrize("index", [0, 3, 41])
def test_windows(subject, plain, index):
    told = show_sample(subject, query(length=37, index=index))
    assert ids(told) == plain.tokens[index * 37 : index * 37 + 38].tolist()
    for table in ("documents", "concepts"):
        expected = plain.touched(table, index * 37, index * 37 + 38)
        assert spans(told, table) == [each[:3] for each in expected]
        assert [one["payload"] for one in told["spans"][table]["spans"]] == [each[3] for each in expected]


def test_every_document(subject, plain):
    for number, (start, stop, payload) in enumerate(plain.table("documents")):
        told = show_sample(subject, query(view="documents", table="documents", index=number))
        assert ids(told) == plain.tokens[start:stop].tolist()
        assert told["items"] == stop - start
        assert told["spans"]["documents"]["spans"][0]["payload"] == payload
        assert sum(place["stop"] - place["start"] for place in told["places"]) == stop - start


def test_packed_rows(subject, plain):
    with pytest.raises(MissingError, match="tokenfeed pack"):
        show_sample(subject, query(view="packed", length=100, table="documents"))
    subject[Store].pack(100)
    view = subject[Store].packed(100)
    for index in range(len(view)):
        told = show_sample(subject, query(view="packed", length=100, table="documents", index=index))
        assert ids(told) + [0] * told["padding"] == view[index].tokens.tolist()
        row = view[index].spans["documents"]
        assert spans(told, "documents") == [(one.number, one.start, one.stop) for one in row]


def test_long_samples_are_shown_in_parts(subject, plain, monkeypatch):
    monkeypatch.setattr("tokenfeed.ui.samples.MOST_ITEMS", 30)
    subject[Store].pack(100)
    for asked in ({"view": "windows"}, {"view": "packed"}, {"view": "documents"}):
        where = {"length": 100, "index": 4, "table": "documents", **asked}
        view = {
            "windows": subject[Store].windows(100),
            "packed": subject[Store].packed(100),
            "documents": subject[Store].documents(),
        }[asked["view"]]
        tokens, spans_shown = [], []
        told = show_sample(subject, query(**where))
        for offset in range(0, told["items"], 30):
            part = show_sample(subject, query(**where, offset=offset))
            assert part["offset"] == offset
            assert (part["padding"] > 0) <= (offset + 30 >= told["items"])
            tokens += ids(part) + [0] * part["padding"]
            spans_shown += [number for number, *_ in spans(part, "documents")]
        assert tokens == view[4].tokens.tolist()
        assert set(spans_shown) == {span.number for span in view[4].spans["documents"]}


def test_no_such_sample(subject):
    for wrong in ({"index": 10**9}, {"view": "documents", "table": "documents", "index": 120}):
        with pytest.raises(SampleIndexError, match="no sample"):
            show_sample(subject, query(**wrong))
    with pytest.raises(ArgumentError, match="view is 'rows'"):
        show_sample(subject, query(view="rows"))


def test_tokens_are_decoded():
    tokenizer = golden_tokenizer()
    numbers = tokenizer.encode("zukagidte é\n", prepend="<|bos|>")
    told = show_tokens(np.array([*numbers, 60_000]), tokenizer)
    assert told[0] == [tokenizer.bos_id, "<|bos|>", 1]
    assert told[-1] == [60_000, "", 0]
    text = b"".join(bytes.fromhex(text) if kind == 2 else text.encode() for _, text, kind in told[1:-1])
    assert text.decode() == "zukagidte é\n"


@pytest.mark.parametrize("length", [10, 100, 5000])
def test_the_rows_counted_are_those_that_pack_makes(subject, plain, length):
    lengths = np.array([stop - start for start, stop, _ in plain.table("documents")])
    rows = pack_some(lengths, length + 1)
    report = subject[Store].pack(length)
    packed = subject[Store].packed(length)
    assert len(rows) == len(packed) == report.rows
    for row, pieces in enumerate(rows):
        first_items, offsets = packed.rows(np.array([row])).extents
        assert pieces == [pair for pair in zip(first_items, np.diff(offsets), strict=True) if pair[0] >= 0]
    told = show_waste(subject, query(table="documents", length=length, count=4096))
    (own,) = (one for one in told["lengths"] if one["length"] == length)
    assert own["rows"] == report.rows
    assert own["used"] == pytest.approx(report.used)
    assert own["longer"] == report.cut_documents
    assert told["documents"] == 120


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """Documents in several scripts, some of them empty, and a subject that decodes them."""
    root = tmp_path_factory.mktemp("texts")
    tokenizer = golden_tokenizer()
    tokenizer.save(root / "tokenizer")
    texts = [
        f"{'Needle' if number % 50 == 7 else 'hay'} number {number} é שלום\n" * (number % 4) for number in range(300)
    ]
    with tokenfeed.Writer(
        root / "store",
        columns={"tokens": "uint16", "reward": "float32"},
        spans={"documents": "json"},
        shard_bytes=4000,
        tokenizer=tokenizer.digest,
        sync=False,
    ) as writer:
        for number, text in enumerate(texts):
            ids = tokenizer.encode(text)
            payload = {"number": number, "half": number / 2, "kind": "odd" if number % 2 else "even"}
            writer.append({"tokens": ids, "reward": np.full(ids.size, -1.288)}, documents=payload)
    return open_subject(str(root / "store"), tokenizer=str(root / "tokenizer")), texts


def test_documents_as_a_table(texts):
    subject, written = texts
    told = list_documents(subject, query(first=6, count=3))
    assert [one["document"] for one in told["documents"]] == [6, 7, 8]
    assert written[7].startswith(told["documents"][1]["text"][:10])
    assert told["documents"][1]["text"]
    assert told["documents"][1]["payload"] == {"number": 7, "half": 3.5, "kind": "odd"}
    pages = [list_documents(subject, query(first=first, count=50)) for first in range(0, 300, 50)]
    lengths = [one["items"] for page in pages for one in page["documents"]]
    tokenizer = subject.find(Tokenizer)
    assert lengths == [tokenizer.encode(text).size for text in written]
    assert list_documents(subject, query(first=10**6))["documents"] == []


def test_a_page_of_documents_is_all_that_is_read(tmp_path, monkeypatch):
    """However many documents there are: what is asked of the table, and the memory that it takes, is that of a page."""
    asked, many = [], open_subject(str(write_many_shards(tmp_path / "store", 2000)))

    def count(name):
        ask = getattr(SpanTable, name)
        monkeypatch.setattr(SpanTable, name, lambda table, numbers: asked.append(numbers.size) or ask(table, numbers))

    count("locate")
    count("read")
    for first in (0, 123_400, 199_990, 10**9):
        list_documents(many, query(first=first, count=20))  # opens the files of the page
        asked.clear()
        tracemalloc.start()
        told = list_documents(many, query(first=first, count=20))
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        expected = range(first, min(first + 20, 200_000))
        assert [one["document"] for one in told["documents"]] == list(expected)
        assert [one["payload"] for one in told["documents"]] == [number % 100 for number in expected]
        assert told["total"] == 200_000
        assert asked == [len(expected)] * 2 * (len(expected) > 0)
        assert most < 200_000, "not one byte for each document of the store"


@pytest.mark.parametrize("column", ["loss_mask", "none"])
def test_the_loss_of_every_item_is_that_of_batches(tmp_path, column):
    """Item p is target p − 1 of its row; the first of a row, and of a document in a packed row, is none."""
    counts = [5, 9, 4, 30]
    with tokenfeed.Writer(
        tmp_path / "s", columns={"tokens": "uint16", column: "uint8"}, spans={"documents": "json"}, sync=False
    ) as writer:
        for count in counts:
            writer.append({"tokens": np.arange(count), column: np.arange(count) % 3 > 0}, documents={})
    tokenfeed.open(tmp_path / "s").pack(16)
    subject, store = open_subject(str(tmp_path / "s")), tokenfeed.open(tmp_path / "s")
    views = {"windows": store.windows(16), "documents": store.documents(), "packed": store.packed(16)}
    for name, view in views.items():
        for index in range(len(view)):
            told = show_sample(subject, query(view=name, index=index, length=16, table="documents"))
            mask = view.read([index]).loss_mask
            if mask is None or mask.all():
                assert told["loss"] is None
            else:
                assert told["loss"] == [0.0, *mask[0].astype(float)][: len(told["tokens"])]
    assert (show_sample(subject, query(length=16))["loss"] is None) == (column == "none")


def test_fractions_stay_fractions(texts):
    told = show_sample(texts[0], query(view="documents", index=3))
    assert told["columns"]["reward"][0] == pytest.approx(-1.288)


def make_odd(kind, path):
    if kind == "foreign":
        np.array([5, 6, 7, 0, 8, 0, 9, 9, 9, 9, 0], np.uint16).tofile(path.with_suffix(".bin"))
        return open_subject(str(path.with_suffix(".bin")), dtype="uint16", eos=0)
    columns = {"frame": ("uint8", (2, 3))} if kind == "frames" else {"tokens": "uint16"}
    spans = {} if kind == "no spans" else {"documents": None if kind == "no payloads" else "bytes"}
    with tokenfeed.Writer(path, columns=columns, spans=spans, sync=False) as writer:
        for _ in range(0 if kind == "empty" else 3):
            writer.append({name: np.ones((20, *([2, 3] if name == "frame" else [])), int) for name in columns})
    return open_subject(str(path))


@pytest.mark.parametrize("kind", ["empty", "no spans", "no payloads", "frames", "foreign"])
def test_stores_of_every_kind_can_be_looked_at(kind, tmp_path):
    """Each question is answered, or it is said why not."""
    subject = make_odd(kind, tmp_path / "odd")
    has_items, has_spans = kind != "empty", kind != "no spans"
    assert (describe_store(subject, query())["items"] > 0) == has_items
    for answer in (list_documents, show_waste):
        if has_spans:
            assert (answer(subject, query(length=4))["total"] > 0) == has_items
        else:
            with pytest.raises(ArgumentError, match="no table to choose"):
                answer(subject, query())
    if has_items:
        show_sample(subject, query(length=4))
    else:
        with pytest.raises(SampleIndexError, match="no sample 0"):
            show_sample(subject, query())
    if kind == "foreign":
        told = show_sample(subject, query(view="documents", index=1))
        assert ids(told) == [8, 0]
        assert [place["shard"] for place in told["places"]] == ["odd.bin"]


def test_subjects(store_path, tmp_path):
    run = tmp_path / "run.jsonl"
    loader = tokenfeed.Loader(
        tokenfeed.open(store_path).windows(16), batch_size=2, prefetch=0, rank=0, world_size=1, run=run
    )
    next(iter(loader))
    loader.close()
    opened = open_subject(str(run))
    assert (opened.kind, opened.name) == ("run", "run.jsonl")
    assert opened.store_of(None).identity == tokenfeed.open(store_path).identity
    assert open_subject(str(tmp_path / "run.stats.jsonl")).kind == "stats"  # it may come later
    with pytest.raises(NotFoundError, match=r"observe\.publish"):
        open_subject(str(tmp_path / "no" / "run.stats.jsonl"))
    store_path.rename(tmp_path / "elsewhere")
    with pytest.raises(NotAStoreError, match="there is no file or folder"):
        open_subject(str(run)).store_of(None)
    assert not open_subject(str(run)).describe()["has_store"]
