"""What the page shows of a store is what is in it: samples, bytes, lengths, packed rows."""

import base64
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tokenfeed
from golden import golden_tokenizer
from tokenfeed.errors import ArgumentError, MissingError, NotAStoreError, NotFoundError, SampleIndexError
from tokenfeed.runs.run import Run
from tokenfeed.store.store import Store
from tokenfeed.text.tokenizer.tokenizer import Tokenizer
from tokenfeed.ui.documents import list_documents, search_documents, show_fields
from tokenfeed.ui.messages import Query
from tokenfeed.ui.overview import _edges, count_lengths, describe_store, list_shards, sample_spans
from tokenfeed.ui.packing import pack_some, show_rows
from tokenfeed.ui.runs import describe_run, find_sightings, show_ledger, trace_step
from tokenfeed.ui.samples import show_bytes, show_sample, show_tokens
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


def test_shards_come_in_pages(subject, plain):
    whole = list_shards(subject, query(count=100))
    pages = [list_shards(subject, query(first=first, count=2)) for first in range(0, whole["total"], 2)]
    parts = [row for page in pages for row in page["shards"]]
    assert parts == whole["shards"]
    assert sum(row["items"] for row in parts) == plain.tokens.size
    assert list_shards(subject, query(first=10**6))["shards"] == []
    for row in parts:
        files = (Path(subject[Store].paths[0]) / row["name"]).iterdir()
        assert row["bytes"] == sum(path.stat().st_size for path in files if path.name != "shard.json")


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


def test_bytes_are_those_of_the_files(subject, plain):
    """Every cell is what its file has there, and the cells of a sample add up to its items."""
    root = Path(subject[Store].paths[0])
    for view, index in (("windows", 0), ("windows", 5), ("documents", 7), ("documents", 30)):
        asked = {"view": view, "index": index, "length": 50, "table": "documents"}
        sample = show_sample(subject, query(**asked))
        told = show_bytes(subject, query(item=1, **asked))
        files = {file["name"]: file for file in told["files"]}
        for file in files.values():
            data = (root / told["shard"] / file["name"]).read_bytes()
            assert len(data) == file["bytes"]
            for cell in file["cells"]:
                shown = bytes.fromhex(cell["hex"].removesuffix(" …"))
                assert data[cell["byte_start"] : cell["byte_stop"]].startswith(shown)
        tokens = [int(cell["value"]) for cell in files["tokens.npy"]["cells"]]
        assert tokens == ids(sample)[1 : 1 + len(tokens)]
        starts = np.load(root / told["shard"] / "documents.starts.npy")
        shown = files["documents.starts.npy"]["cells"]
        assert all(int(cell["value"]) in starts for cell in shown)
        assert {cell["span"] for cell in shown} <= {one["number"] for one in sample["spans"]["documents"]["spans"]}


def test_bytes_of_a_packed_column(tmp_path):
    """A cell is the bytes that its number has bits in."""
    with tokenfeed.Writer(tmp_path, columns={"tokens": "uint32"}, bits={"tokens": 17}, sync=False) as writer:
        writer.append({"tokens": np.arange(100_000, 100_020)})
    subject = open_subject(str(tmp_path))
    (file,) = show_bytes(subject, query(length=15, item=3))["files"]
    assert (file["name"], "17 bits each" in file["what"]) == ("tokens.bits.npy", True)
    for number, cell in enumerate(file["cells"], 3):
        held = int.from_bytes(bytes.fromhex(cell["hex"]), "little") >> number * 17 % 8
        assert held & 0x1FFFF == int(cell["value"]) == 100_000 + number
        assert cell["byte_start"] == 128 + number * 17 // 8
    (place,) = show_sample(subject, query(length=15))["places"]
    assert (place["byte_start"], place["byte_stop"]) == (128, 128 + 34)


def test_tokens_are_decoded():
    tokenizer = golden_tokenizer()
    numbers = tokenizer.encode("zukagidte é\n", prepend="<|bos|>")
    told = show_tokens(np.array([*numbers, 60_000]), tokenizer)
    assert told[0] == [tokenizer.bos_id, "<|bos|>", 1]
    assert told[-1] == [60_000, "", 0]
    text = b"".join(bytes.fromhex(text) if kind == 2 else text.encode() for _, text, kind in told[1:-1])
    assert text.decode() == "zukagidte é\n"


def test_lengths_of_few_are_exact(subject, plain):
    told = count_lengths(subject, query(table="documents"))
    lengths = np.array([stop - start for start, stop, _ in plain.table("documents")])
    assert told["sampled"] == told["total"] == 120
    assert (told["longest"], told["median"]) == (lengths.max(), np.median(lengths))
    for bin_ in told["bins"]:
        assert bin_["count"] == ((lengths >= bin_["start"]) & (lengths < bin_["stop"])).sum()
    assert sum(bin_["count"] for bin_ in told["bins"]) == 120


@given(st.integers(0, 10**12))
def test_edges_hold_every_length(longest):
    edges = _edges(longest)
    assert edges[0] == 0
    assert edges[-1] == longest + 1
    assert (np.diff(edges) > 0).all()
    assert edges.size <= 30


@given(st.lists(st.integers(0, 2000), max_size=300))
def test_a_sample_of_spans_is_bounded(counts):
    starts = np.concatenate(([0], np.cumsum(np.array(counts, np.int64)))).astype(np.int64)
    numbers = sample_spans(starts, 256)
    assert np.array_equal(numbers, np.unique(numbers))
    assert numbers.size <= 64 * 256
    assert (numbers.size > 0) == (sum(counts) > 0)
    if numbers.size:
        assert numbers[0] >= 0
        assert numbers[-1] < starts[-1]
        assert np.unique(np.searchsorted(starts, numbers, side="right")).size <= 64


@pytest.mark.parametrize("length", [10, 100, 5000])
def test_the_rows_shown_are_those_that_pack_makes(subject, plain, length):
    lengths = np.array([stop - start for start, stop, _ in plain.table("documents")])
    rows = pack_some(lengths, length + 1)
    report = subject[Store].pack(length)
    packed = subject[Store].packed(length)
    assert len(rows) == len(packed) == report.rows
    for row, pieces in enumerate(rows):
        first_items, offsets = packed.rows(np.array([row])).extents
        assert pieces == [pair for pair in zip(first_items, np.diff(offsets), strict=True) if pair[0] >= 0]
    told = show_rows(subject, query(table="documents", length=length, count=4096))
    assert told["used"] == pytest.approx(report.used)
    assert told["cut"] == report.cut_documents
    assert told["documents"] == 120


def test_documents_are_found_by_what_their_payloads_say(subject, plain):
    """All of them, in pieces of twenty, each told once."""
    payloads = [payload for _, _, payload in plain.table("documents")]
    for text in ("1", "URL", "nowhere", '"'):
        found, first = [], 0
        while first < 120:
            told = search_documents(subject, query(text=text, first=first))
            assert len(told["found"]) <= 20
            assert told["next"] > first
            found += told["found"]
            first = told["next"]
        shown = [payload if isinstance(payload, str) else json.dumps(payload) for payload in payloads]
        expected = [
            number
            for number, payload in enumerate(payloads)
            if payload is not None and text.lower() in shown[number].lower()
        ]
        assert [one["document"] for one in found] == expected
        assert [one["payload"] for one in found] == [payloads[number] for number in expected]
        assert [one["items"] for one in found] == [
            int(plain.table("documents")[each][1] - plain.table("documents")[each][0]) for each in expected
        ]
    with pytest.raises(ArgumentError, match="look for"):
        search_documents(subject, query())
    with pytest.raises(MissingError):
        search_documents(subject, query(text="1", source="web"))


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


def search_all(subject, **asked):
    found, first = [], 0
    while True:
        told = search_documents(subject, query(first=first, **asked))
        found += told["found"]
        assert told["next"] > first
        first = told["next"]
        if first >= told["total"]:
            return found


@pytest.mark.parametrize("wanted", ["needle", "NUMBER 57", "é", "שלום", "absent", "!!"])
def test_documents_are_found_by_their_text(texts, wanted):
    subject, written = texts
    found = search_all(subject, text=wanted, where="text")
    expected = [number for number, text in enumerate(written) if wanted.casefold() in text.casefold()]
    assert [one["document"] for one in found] == expected
    assert all(wanted.casefold() in one["around"].casefold() for one in found)


def test_payload_and_text_are_searched_together(texts):
    subject, written = texts
    found = {one["document"] for one in search_all(subject, text="57")}
    assert found == {number for number, text in enumerate(written) if "57" in text or "57" in f"{number} {number / 2}"}


def test_documents_as_a_table(texts):
    subject, written = texts
    told = list_documents(subject, query(first=6, count=3))
    assert [one["document"] for one in told["documents"]] == [6, 7, 8]
    assert written[7].startswith(told["documents"][1]["text"][:10])
    assert told["documents"][1]["text"]
    assert told["documents"][1]["payload"] == {"number": 7, "half": 3.5, "kind": "odd"}
    longest = list_documents(subject, query(sort="-tokens", count=50))["documents"]
    lengths = [one["items"] for one in longest]
    assert lengths == sorted(lengths, reverse=True)
    assert list_documents(subject, query(sort="tokens"))["documents"][0]["items"] == 0
    assert list_documents(subject, query(first=10**6))["documents"] == []


def read_all(subject, **asked):
    """Ask until the fields are known, as the page does."""
    while True:
        told = list_documents(subject, query(count=50, **asked))
        if told["known"] == told["most"]:
            return [one["document"] for one in told["documents"]], told["matching"]


@pytest.mark.parametrize(
    ("asked", "key", "holds"),
    [
        ({"sort": "-half"}, lambda n: -n, lambda n: True),
        ({"sort": "kind"}, lambda n: (n % 2, n), lambda n: True),
        ({"sort": "-document"}, lambda n: -n, lambda n: True),
        ({"filter": "half >= 140.5"}, lambda n: n, lambda n: n / 2 >= 140.5),
        ({"filter": "kind = ODD", "sort": "-number"}, lambda n: -n, lambda n: n % 2),
        ({"filter": "kind ~ ve"}, lambda n: n, lambda n: n % 2 == 0),
        ({"filter": "number != 3"}, lambda n: n, lambda n: n != 3),
        ({"filter": "tokens = 0"}, lambda n: n, lambda n: n % 4 == 0),
    ],
)
def test_documents_by_fields_of_their_payloads(texts, asked, key, holds, monkeypatch):
    monkeypatch.setattr("tokenfeed.ui.documents._SLICE", 100)
    subject = texts[0]
    subject.kept.clear()
    monkeypatch.setattr("tokenfeed.ui.documents._FIELD_SECONDS", 1e-4)
    expected = sorted(filter(holds, range(300)), key=key)
    assert read_all(subject, **asked) == (expected[:50], len(expected))


def test_documents_without_a_field_come_last(tmp_path):
    payloads = [{"score": 2}, None, {"score": 0.5}, {"other": 1}, {"score": "high"}, {"score": float("nan")}]
    with tokenfeed.Writer(tmp_path, columns={"tokens": "uint16"}, spans={"documents": "json"}, sync=False) as writer:
        for payload in payloads:
            writer.append({"tokens": [1, 2]}, documents=payload)
    subject = open_subject(str(tmp_path))
    assert read_all(subject, sort="score")[0] == [2, 0, 4, 1, 3, 5]
    assert read_all(subject, sort="-score")[0] == [4, 0, 2, 1, 3, 5]
    assert read_all(subject, filter="score < 1") == ([2], 1)
    with pytest.raises(ArgumentError, match="no payload has a field 'length'"):
        read_all(subject, sort="length")
    with pytest.raises(ArgumentError, match="expected a field, one of"):
        read_all(subject, filter="score")


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


def test_fields_of_payloads(texts):
    told = {one["name"]: one for one in show_fields(texts[0], query())["fields"]}
    assert set(told) == {"number", "half", "kind"}
    assert sum(told["half"]["bins"]) == 300
    assert (told["half"]["least"], told["half"]["most"]) == (0.0, 149.5)
    assert dict(map(tuple, told["kind"]["values"])) == {"even": 150, "odd": 150}


def test_fractions_stay_fractions(texts):
    told = show_sample(texts[0], query(view="documents", index=3))
    assert told["columns"]["reward"][0] == pytest.approx(-1.288)


@pytest.mark.parametrize("shape", [(5, 4), (5, 4, 3), (3, 5, 4)])
def test_pictures(tmp_path, shape):
    frames = np.random.default_rng(0).integers(0, 256, (20, *shape)).astype(np.uint8)
    with tokenfeed.Writer(tmp_path, columns={"tokens": "uint16", "frame": ("uint8", shape)}, sync=False) as writer:
        writer.append({"tokens": np.arange(20), "frame": frames})
    (told,) = show_sample(open_subject(str(tmp_path)), query(length=6, index=1))["pictures"]
    assert (told["height"], told["width"], told["total"]) == (5, 4, 7)
    expected = frames if shape != (3, 5, 4) else np.moveaxis(frames, 1, -1)
    for place, data in enumerate(told["shown"]):
        assert base64.b64decode(data) == expected[6 + place].tobytes()


@pytest.fixture(scope="module")
def mixture(texts, tmp_path_factory):
    """A run of two sources, amended on the way, as a subject."""
    root = tmp_path_factory.mktemp("mixture")
    store = tokenfeed.open(texts[0][Store].paths[0])
    other = root / "other"
    made = {"spans": {"documents": "json"}, "tokenizer": store.tokenizer, "sync": False}
    with tokenfeed.Writer(other, columns={"tokens": "uint16"}, **made) as writer:
        for number in range(40):
            writer.append({"tokens": np.full(30, number)}, documents={"other": number})
    views = {"web": (store.windows(16), 0.75), "code": (tokenfeed.open(other).windows(16), 0.25)}
    plan = tokenfeed.Plan.of(tokenfeed.mix(views), seed=1).amend(40, weights={"web": 0.5, "code": 0.5})
    options = {"prefetch": 0, "rank": 0, "world_size": 2, "run": root / "run.jsonl"}
    with tokenfeed.Loader(plan, 40, **options) as loader:
        for _ in range(3):
            next(loader)
    return open_subject(str(root / "run.jsonl"))


def test_every_source_of_a_mixture_can_be_looked_at(mixture):
    assert mixture.describe()["has_store"]
    told = [describe_store(mixture, query(source=name))["items"] for name in ("web", "code")]
    assert told[0] != told[1] == 40 * 30
    assert show_sample(mixture, query(source="code", view="documents", index=7))["tokens"][0][0] == 7
    assert show_rows(mixture, query(source="code", length=64))["documents"] == 40
    with pytest.raises(ArgumentError, match="no source"):
        describe_store(mixture, query(source="elsewhere"))


def test_amendments_and_the_present_are_told(mixture):
    told = describe_run(mixture, query())
    assert told["amendments"] == [{"sample": 40, "step": 0, "told": "the change of weights"}]
    assert (told["reached"], told["step"]) == (240, 3)
    ledger = show_ledger(mixture, query())
    assert ledger["samples"] == 240
    assert sum(one["samples"] for one in ledger["sources"]) == 240
    assert [sum(samples for samples, _ in point[1:]) for point in ledger["points"]] == [
        point[0] for point in ledger["points"]
    ]


def test_a_step_comes_in_pages_and_tells_what_is_planned(mixture):
    pages = [trace_step(mixture, query(step=2, first=first)) for first in (0, 50)]
    assert [len(page["rows"]) for page in pages] == [50, 30]
    assert {page["num_rows"] for page in pages} == {80}
    rows = [row["sample"] for page in pages for row in page["rows"]]
    assert rows == tokenfeed.Run(mixture[Run].path).samples(2)
    assert not pages[0]["planned"]
    assert trace_step(mixture, query(step=3))["planned"]
    assert trace_step(mixture, query())["step"] == 3
    alone = trace_step(mixture, query(step=2, rank=1, first=30))
    assert ([row["rank"] for row in alone["rows"]], alone["num_rows"]) == ([1] * 10, 40)


def test_past_and_planned_sightings_are_told_apart(mixture):
    told = find_sightings(mixture, query(document=3, source="code"))
    seen = tokenfeed.Run(mixture[Run].path).find(3, source="code", epochs=range(told["epochs"]))
    assert told["total"] == len(seen) > told["num_planned"] == sum(each.planned for each in seen) > 0


def test_when_a_window_is_seen(mixture):
    """As often as `trace` has it, in the same rows."""
    run = tokenfeed.Run(mixture[Run].path)
    told = find_sightings(mixture, query(index=3, source="code"))
    rows = [row for step in range(40) for row in run.trace(step)]
    last = max(row.sample for row in rows)
    expected = [row for row in rows if (row.source, row.index) == ("code", 3) and row.epoch < told["epochs"]]
    seen = [one for one in told["seen"] if one["sample"] <= last]
    assert [(one["sample"], one["step"], one["rank"], one["row"]) for one in seen] == [
        (row.sample, row.step, row.rank, row.row) for row in expected
    ]
    assert told["total"] - told["num_planned"] == sum(not row.planned for row in expected) > 0
    (alone,) = trace_step(mixture, query(sample=expected[0].sample))["rows"]
    assert (alone["sample"], alone["rank"], alone["source"]) == (expected[0].sample, expected[0].rank, "code")


def test_checkpoints_and_what_was_rolled_back(store_path, tmp_path):
    """Steps 4 to 6 are trained, the run goes back to step 4, skips there, and goes on with another batch size."""
    path, view = tmp_path / "run.jsonl", tokenfeed.open(store_path).windows(16)
    options = {"rank": 0, "world_size": 2, "run": path, "prefetch": 0}
    with tokenfeed.Loader(view, 3, **options) as loader:
        batches = [(next(loader), loader.state_dict() if step in (4, 6) else None) for step in range(1, 8)]
    state, trained = batches[3][1], batches[4][0].indices.tolist()
    with tokenfeed.Loader(view, 6, **options) as loader:
        loader.amend(24, skip=tokenfeed.Skip(indices=loader.plan.locate([24, 25, 26, 27])[2]))
        loader.load_state_dict(state)
        next(loader)
    subject = open_subject(str(path))
    told = describe_run(subject, query())
    assert [(one["step"], one["sample"]) for one in told["checkpoints"]] == [(4, 24), (6, 36)]
    ((start, first, stop),) = [(one["start"], one["first_step"], one["stop_step"]) for one in told["rolled_back"]]
    assert (start, first, stop) == (0, 4, 7)
    before, after = (trace_step(subject, query(step=4, **asked)) for asked in ({"start": 0}, {}))
    assert [row["sample"] for row in before["rows"]] == list(range(24, 30))
    assert [row["index"] for row in before["rows"] if row["rank"] == 0] == trained
    assert [row["sample"] for row in after["rows"]] == list(range(24, 36))
    assert not before["planned"]


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
    assert len(list_shards(subject, query())["shards"]) == has_items
    for answer in (count_lengths, show_rows):
        if has_spans:
            assert (answer(subject, query(length=4))["total"] > 0) == has_items
        else:
            with pytest.raises(ArgumentError, match="no table to choose"):
                answer(subject, query())
    for answer in (show_sample, show_bytes):
        if has_items:
            answer(subject, query(length=4))
        else:
            with pytest.raises(SampleIndexError, match="no sample 0"):
                answer(subject, query())
    if kind == "foreign":
        told = show_sample(subject, query(view="documents", index=1))
        assert ids(told) == [8, 0]
        files = [file["name"] for file in show_bytes(subject, query(length=4))["files"]]
        assert files == ["odd.bin"]


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
    text = tmp_path / "text.jsonl"
    text.write_text('{"text": "plan"}\n')
    assert open_subject(str(text)).kind == "text"
    with pytest.raises(MissingError, match="tokenizer"):
        _ = opened[Tokenizer]
    store_path.rename(tmp_path / "elsewhere")
    with pytest.raises(NotAStoreError, match="there is no file or folder"):
        open_subject(str(run)).store_of(None)
    assert not open_subject(str(run)).describe()["has_store"]
    with pytest.raises(ArgumentError, match="cannot be compared"):
        open_subject(str(tmp_path / "elsewhere"), other=str(run))


def test_a_run_that_comes_later(store_path, tmp_path):
    """The page is opened before the run file exists, and follows it as it grows."""
    run = tmp_path / "run.jsonl"
    opened = open_subject(str(run))
    assert (opened.kind, opened.describe()["has_run"], opened.find(Run)) == ("run", False, None)
    with pytest.raises(MissingError, match="not there yet"):
        describe_run(opened, query())
    options = {"prefetch": 0, "rank": 0, "world_size": 1, "run": run}
    with tokenfeed.Loader(tokenfeed.open(store_path).windows(16), batch_size=2, **options) as loader:
        next(loader)
        assert opened.describe()["has_run"]
        loader.state_dict()
        assert describe_run(opened, query())["reached"] == 2
        held = opened[Run]
        next(loader)
        loader.state_dict()
    assert describe_run(opened, query())["reached"] == 4
    assert opened[Run] is held
