"""What fuzzing has found, one test each."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tokenfeed
from fuzz.text_targets import byte_tokenizer
from plain import make_documents
from tokenfeed.errors import (
    CorruptionError,
    FormatError,
    PlanMismatchError,
    ReadError,
    StateError,
    TokenfeedError,
)
from tokenfeed.format.manifest import Manifest, ShardRecord
from tokenfeed.observe.snapshots import Snapshot, read_snapshots
from tokenfeed.plan.plan import Plan
from tokenfeed.storage import objects
from tokenfeed.text.sources.files import TextFiles
from tokenfeed.text.sources.finding import read_listing
from tokenfeed.text.streaming.lanes import SavedStream

DEEP = b"[" * 100_000


def test_json_that_is_nested_too_deep(tmp_path):
    """RecursionError, in every reader but that of manifests."""
    file = tmp_path / "tokenizer.json"
    file.write_bytes(b'{"format": ' + DEEP)
    with pytest.raises(FormatError, match="not JSON"):
        tokenfeed.Tokenizer.load(file)
    (tmp_path / "files.json").write_bytes(DEEP)
    with pytest.raises(FormatError, match="not a list"):
        read_listing(tmp_path)
    (tmp_path / "plan.json").write_bytes(DEEP)
    with pytest.raises(StateError):
        Plan.load(tmp_path / "plan.json")
    (tmp_path / "run.jsonl").write_bytes(b"[" + DEEP + b"}\n{}\n")
    with pytest.raises(StateError, match="line 1"):
        tokenfeed.Run(tmp_path / "run.jsonl")
    (tmp_path / "stats.jsonl").write_bytes(DEEP + b"\n")
    with pytest.raises(StateError, match="no live statistics"):
        read_snapshots(tmp_path / "stats.jsonl")


def test_values_that_cannot_be_shown():
    """`repr` recurses further than the parser did."""
    value = 0
    for _ in range(400):
        value = [value]
    for parse in (lambda data: Manifest.from_json(data, "m"), lambda data: ShardRecord.from_json(data, "s", {})):
        with pytest.raises(FormatError):
            parse(json.dumps({"format": value, "version": 1}).encode())


@pytest.fixture
def stream(tmp_path):
    for number in range(3):
        pq.write_table(pa.table({"text": ["x" * 50] * 40}), tmp_path / f"{number}.parquet", row_group_size=10)

    def make(**options):
        given = {"batch_size": 2, "length": 32, "prefetch": 0, "buffer_size": 20, "rank": 0, "world_size": 1}
        return tokenfeed.stream(tmp_path / "*.parquet", byte_tokenizer(), **{**given, **options})

    return make


@pytest.mark.parametrize(
    "change",
    [
        {"num_lanes": 10**400},
        {"num_lanes": 2**40},
        {"samples": 10**400},
        {"files": {"x" * 300: ""}},
        {"files": {"99": ""}},
        {"files": {"²": ""}},
    ],
)
def test_states_of_streams_with_absurd_numbers(stream, change):
    """Lists of 2**40 lanes were made, and OverflowError, ValueError, IndexError raised."""
    feed = stream()
    next(feed)
    state = {**feed.state_dict(), **change}
    for given in (state, [state], [[state]]):
        with pytest.raises((StateError, PlanMismatchError)):
            stream().load_state_dict(given)


def test_references_beyond_64_bits(stream):
    feed = stream()
    next(feed)
    state = json.loads(json.dumps(feed.state_dict()))
    state["lanes"]["0"]["documents"][0] = 2**64
    with pytest.raises(StateError):
        SavedStream.from_json(state)


def test_one_lane_far_ahead_of_another(stream):
    """Dealing out anew went through every epoch in between."""
    feed = stream(lanes=2)
    next(feed)
    state = json.loads(json.dumps(feed.state_dict()))
    state["lanes"]["0"]["cursor"][0] = 2**50
    with pytest.raises(StateError, match="epochs ahead"):
        stream(lanes=3).load_state_dict(state)


@pytest.mark.parametrize(
    "change", [{"pq_idx": "x"}, {"pq_idx": 99}, {"rg_idx": -1}, {"rg_idx": 2**70}, {"epoch": None}]
)
def test_states_of_nanochat_with_absurd_numbers(stream, change):
    with pytest.raises(StateError):
        stream().load_state_dict({"pq_idx": 0, "rg_idx": 0, "epoch": 1, **change})


def test_the_state_of_a_loader_beyond_64_bits(store_path):
    loader = tokenfeed.Loader(tokenfeed.open(store_path).windows(20), batch_size=2, rank=0, world_size=1, prefetch=0)
    for samples in (2**62, 2**64, 10**400):
        with pytest.raises(StateError):
            loader.load_state_dict({**loader.state_dict(), "samples": samples})


@pytest.mark.parametrize(
    "change",
    [
        {"step": "x"},
        {"samples": -1},
        {"world_size": 0},
        {"world_size": {}},
        {"stop": 1.5},
        {"time": "x"},
        {"samples": 2**70},
        {"batch_sizes": [[0, 2**40]]},
    ],
)
def test_lines_of_a_run_file_that_are_no_numbers(store_path, tmp_path, change):
    """TypeError and StopIteration later on; and a list of 2**40 samples."""
    path = tmp_path / "run.jsonl"
    next(tokenfeed.Loader(tokenfeed.open(store_path).windows(20), batch_size=2, rank=0, world_size=1, run=path))
    plan, start, *_ = path.read_text().splitlines()  # and how far it got
    path.write_text(f"{plan}\n{json.dumps({**json.loads(start), **change})}\n")
    with pytest.raises(StateError, match="line 2"):
        tokenfeed.Run(path)


OF_PLANS = [{"sources": 7}, {"seed": 1.5}, {"shares": {}}, {"amendments": None}, {"shuffle": 1}]
OF_SOURCES = [{"view": 7}, {"data": None}, {"samples": "7"}, {"samples": True}, {"samples": 2**62}, {"max_epochs": 0}]


def test_plans_with_fields_of_other_types(store_path):
    plan = tokenfeed.Plan.of(tokenfeed.open(store_path).windows(20)).to_json()
    (source,) = plan["sources"]
    for change in (*OF_PLANS, *({"sources": [{**source, **change}]} for change in (*OF_SOURCES, {"name": 3}))):
        with pytest.raises(StateError):
            Plan.from_json({**plan, **change})


@pytest.mark.parametrize("number", [10**400, float("inf"), 2**62, -1, "5"])
def test_plans_with_masks_of_absurd_numbers(store_path, tmp_path, number):
    plan = tokenfeed.Plan.of(tokenfeed.open(store_path).windows(20))
    (tmp_path / "plan.json").write_text(
        json.dumps({**plan.to_json(), "amendments": [{"at": 0, "masks": {"": [5, number]}}]})
    )
    with pytest.raises(StateError):
        Plan.load(tmp_path / "plan.json")


@pytest.mark.parametrize("change", [{"pid": [[]]}, {"cpu_seconds": "x"}, {"time": 10**400}, {"stats": {"remote": 7}}])
def test_snapshots_with_fields_of_other_types(change):
    with pytest.raises(ValueError):
        Snapshot.from_json(json.dumps({"time": 1.0, "stats": {}, **change}))


@pytest.mark.parametrize("change", [{"pattern": "\ud800"}, {"special_tokens": {"\ud800": 300}, "bos": None}])
def test_tokenizers_with_half_a_surrogate_pair(tmp_path, change):
    byte_tokenizer().save(tmp_path)
    fields = {**json.loads((tmp_path / "tokenizer.json").read_bytes()), **change}
    (tmp_path / "tokenizer.json").write_text(json.dumps(fields))
    with pytest.raises(FormatError, match="surrogate"):
        tokenfeed.Tokenizer.load(tmp_path)


def test_a_pattern_that_matches_nothing_at_all(tmp_path):
    """tiktoken panics, which is no Exception."""
    byte_tokenizer().save(tmp_path)
    fields = {**json.loads((tmp_path / "tokenizer.json").read_bytes()), "pattern": ""}
    (tmp_path / "tokenizer.json").write_text(json.dumps(fields))
    with pytest.raises(FormatError, match="pattern"):
        tokenfeed.Tokenizer.load(tmp_path, engine="tiktoken").encode("the text")


def test_a_remote_file_that_claims_more_blocks_than_there_are_keys(tmp_path):
    """Its far blocks had the keys of the blocks of other files, and what was in memory of those was delivered."""
    path, uri = tmp_path / "store", "memory://regressions/store"
    make_documents([300] * 40).write(path, shard_bytes=6_000, name="part")
    for file in path.rglob("*.*"):
        objects.write(f"{uri}/{file.relative_to(path)}", file.read_bytes())
    manifest = json.loads((path / "manifest.json").read_bytes())
    manifest["shards"][0]["items"] = 1 << 52
    objects.write(f"{uri}/manifest.json", json.dumps(manifest).encode())
    store = tokenfeed.open(uri)
    windows = store.windows(100)
    with pytest.raises(CorruptionError, match="at most"):
        windows.read([(1 << 52) // 100 - 1])


@pytest.mark.parametrize("claimed", ["items", "spans"])
@pytest.mark.parametrize("where", ["here", "elsewhere"])
def test_documents_that_claim_more_than_there_is(tmp_path, where, claimed):
    """Room for all of it was made first: MemoryError, or 2 TB of address space."""
    path = tmp_path / "store"
    make_documents([300] * 20).write(path, name="part")
    manifest = json.loads((path / "manifest.json").read_bytes())
    (shard,) = manifest["shards"]
    shard["items"] = 2**40 if claimed == "items" else shard["items"]
    if claimed == "spans":
        shard["spans"]["documents"][0] = 2**40
    (path / "manifest.json").write_text(json.dumps(manifest))
    place = str(path)
    if where == "elsewhere":
        place = f"memory://regressions/{claimed}"
        for file in path.rglob("*.*"):
            objects.write(f"{place}/{file.relative_to(path)}", file.read_bytes())
    store = tokenfeed.open(place)
    with pytest.raises(TokenfeedError):
        assert store.documents().read([len(store.documents()) - 1]).payloads
    with pytest.raises(TokenfeedError):
        assert store.windows(100).read([0]).spans["documents"][0][0].payload


def test_a_list_of_files_with_a_name_too_long(tmp_path):
    """Looking for it gave a plain OSError."""
    (tmp_path / "files.json").write_text(json.dumps({"version": 1, "train": ["a" * 2000 + ".jsonl"], "val": []}))
    with pytest.raises(ReadError, match="too long"):
        TextFiles.find(tmp_path).read(0, 0)
