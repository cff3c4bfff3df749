"""Text: what must hold and does not yet. Each expected failure names what is wrong today."""

import io
import json
import re
import subprocess
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tokenfeed
from far import run_child
from flaky_server import FlakyServer
from golden import RANKS, golden_tokenizer
from tokenfeed.errors import ArgumentError, PlanMismatchError, StateError, TokenfeedError
from tokenfeed.text import Chat, ChatTemplate, Tokenizer, render

LENGTH = 512


# How text is read: a floor that changes the interface changes it here.


def stream(source, tokenizer=None, *, world_size=1, rank=0, key="text", length=LENGTH, batch_size=4, **options):
    how = {"val": None, "prefetch": 0, **options}
    how |= {"rank": rank, "world_size": world_size, "length": length, "batch_size": batch_size, "text_column": key}
    return tokenfeed.stream(source, tokenizer or golden_tokenizer(), **how)


def prepare(source, out, tokenizer=None, **options):
    """The tokens of a store that is made of text."""
    tokenfeed.prepare(source, out, tokenizer=tokenizer or golden_tokenizer(), val=None, **options)
    store = tokenfeed.open(out)
    return store.windows(store.num_items, extra=0)[0].tokens.tolist()


def numbered(count, first=0):
    """Texts that say their numbers, each 10 to 50 times."""
    times = np.random.default_rng(first).integers(10, 51, count).tolist()
    return [f"<{number}> " * said for number, said in enumerate(times, first)]


def write_parquet(path, texts, *, per_group=100):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"text": texts}), path, row_group_size=per_group)
    return path


def write_jsonl(path, texts):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def said_in(batches):
    """How often the numbers of texts are said in some batches. Where a row ends within one, it is not counted."""
    rows = (row for batch in batches for row in batch.tokens)
    return Counter(int(number) for row in rows for number in re.findall(r"<(\d+)>", golden_tokenizer().decode(row)))


# Which documents a stream reads


def sightings_of_an_epoch(path, texts, world_size):
    """How many texts come 0, 1, 2, … times in as many rows as one epoch fills."""
    feeds = [stream(path, rank=rank, world_size=world_size) for rank in range(world_size)]
    total = sum(len(golden_tokenizer().encode(text)) + 1 for text in texts)
    said = said_in(next(feed) for _ in range(total // (4 * world_size * LENGTH)) for feed in feeds)
    times = [said[number] / text.count("<") for number, text in enumerate(texts)]
    return np.bincount(np.round(times).astype(int), minlength=3)


@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="floor 3: documents of the next epoch enter rows while those of this one wait",
)
@pytest.mark.parametrize("world_size", [1, 4])
def test_an_epoch_has_every_document_once(tmp_path, world_size):
    """Every document comes once in as many rows as one epoch fills, but for those of the last rows."""
    texts = numbered(1000 * world_size)
    counts = sightings_of_an_epoch(write_parquet(tmp_path / "a.parquet", texts), texts, world_size)
    assert counts[1] >= 0.98 * len(texts), counts


@pytest.mark.xfail(strict=True, raises=ArgumentError, reason="floor 3: fewer blocks than ranks are refused")
def test_few_blocks_are_read_on_many_ranks(tmp_path):
    """Documents are dealt to ranks one by one where there are fewer blocks than ranks."""
    texts = numbered(1000)
    counts = sightings_of_an_epoch(write_parquet(tmp_path / "a.parquet", texts, per_group=1000), texts, 4)
    assert counts[1] >= 0.96 * len(texts), counts


def second_epoch(tmp_path, source, *, first, added):
    """Numbers of the texts that come in the two epochs after files were added to a stream in its first."""
    write_jsonl(first, numbered(100))
    feed = stream(source, length=128)
    next(feed)
    state = json.loads(json.dumps([feed.state_dict()]))
    write_jsonl(added, numbered(100, 1000))
    resumed = stream(source, length=128)
    resumed.load_state_dict(state)
    return said_in(next(resumed) for _ in range(120))


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="floor 3: files that come later are ignored for ever")
def test_files_that_come_later_are_read_from_the_next_epoch_on(tmp_path):
    """Files that were added before a resume with all states are read from the next epoch on."""
    seen = second_epoch(tmp_path, tmp_path, first=tmp_path / "a.jsonl", added=tmp_path / "b.jsonl")
    assert seen[0] >= 20
    assert set(seen) >= set(range(1000, 1100))


@pytest.mark.xfail(
    strict=True, raises=PlanMismatchError, reason="floor 3: names are relative to what all files have in common"
)
def test_a_folder_that_comes_later_is_read_from_the_next_epoch_on(tmp_path):
    """Names are relative to what was asked for, so that a folder may be added beside the only one there was."""
    places = {"first": tmp_path / "one" / "a.jsonl", "added": tmp_path / "two" / "b.jsonl"}
    seen = second_epoch(tmp_path, str(tmp_path / "*" / "*.jsonl"), **places)
    assert set(seen) >= set(range(1000, 1100))


@pytest.mark.xfail(
    strict=True, raises=AssertionError, reason="floor 3: the files of a folder are read and its subfolders lost"
)
@pytest.mark.parametrize("road", ["stream", "prepare"])
def test_subfolders_are_read(tmp_path, road):
    """A folder is read with its subfolders."""
    write_jsonl(tmp_path / "in" / "a.jsonl", numbered(50))
    write_jsonl(tmp_path / "in" / "deeper" / "still" / "b.jsonl", numbered(50, 1000))
    if road == "stream":
        with stream(tmp_path / "in", epochs=1) as feed:
            seen = set(said_in(feed))
    else:
        text = golden_tokenizer().decode(prepare(tmp_path / "in", tmp_path / "out", workers=0))
        seen = set(map(int, re.findall(r"<(\d+)>", text)))
    assert seen == {*range(50), *range(1000, 1050)}


# States


@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="floor 3: the sources before the one that refuses keep the files of the state alone",
)
def test_a_refused_state_of_a_mixture_changes_nothing(tmp_path):
    """A mixture that refused a state is as it was, although files came since to the source before the one refused."""
    for name in ("web/a", "code/a"):
        write_jsonl(tmp_path / f"{name}.jsonl", numbered(100))
    sources = {name: (str(tmp_path / name), 1) for name in ("web", "code")}
    feed = stream(sources)
    next(feed)
    state = feed.state_dict()
    write_jsonl(tmp_path / "web" / "b.jsonl", numbered(100))
    write_jsonl(tmp_path / "code" / "0.jsonl", numbered(100))  # sorts before the others: not a continuation
    other = stream(sources)
    before = other.state_dict()
    with pytest.raises(PlanMismatchError, match="code"):
        other.load_state_dict(state)
    assert other.state_dict() == before


@pytest.mark.xfail(
    strict=True,
    raises=pytest.fail.Exception,
    reason="floor 3: the number of a file in a cursor is not checked before the first batch",
)
@pytest.mark.parametrize("number", [7, 1 << 40])
def test_a_damaged_cursor_is_refused_at_once(tmp_path, number):
    """A state whose cursor names no place in the files is refused by `load_state_dict`."""
    write_parquet(tmp_path / "a.parquet", numbered(200))
    feed = stream(tmp_path)
    next(feed)
    state = json.loads(json.dumps(feed.state_dict()))
    state["lanes"]["0"]["cursor"][1] = number  # of a file, and there is one
    with pytest.raises(StateError):
        stream(tmp_path).load_state_dict(state)


# What is learned of a conversation

GPT_OSS = """
{%- for message in messages -%}
<|start|>{{ message.role }}<|message|>{{ message.content }}
{%- if message.role == 'assistant' and loop.last and not add_generation_prompt %}<|return|>{% else %}<|end|>{% endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<|start|>assistant<|message|>{%- endif -%}"""
GLM = """[gMASK]<sop>
{%- for message in messages -%}<|{{ message.role }}|>\n{{ message.content }}{%- endfor -%}
{%- if add_generation_prompt -%}<|assistant|>\n{%- endif -%}"""
NAMES = [
    "<|bos|>",
    "<|start|>",
    "<|message|>",
    "<|return|>",
    "<|end|>",
    "[gMASK]",
    "<sop>",
    "<|user|>",
    "<|assistant|>",
]
TURNS = [("user", "Hello there"), ("assistant", "How are you"), ("user", "Well"), ("assistant", "Good")]


def chat_tokenizer():
    numbers = {name: 4087 + number for number, name in enumerate(NAMES)}
    return Tokenizer.from_ranks(RANKS, pattern="nanochat", special_tokens=numbers)


@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="floor 3: the token that ends a turn is not learned where the template writes it otherwise later",
)
@pytest.mark.parametrize(("template", "stops"), [(GPT_OSS, ["<|end|>", "<|return|>"]), (GLM, ["<|user|>"])])
def test_the_token_that_ends_a_turn_is_learned(template, stops):
    """The token by which the assistant ends a turn is learned after every turn, or the template is refused."""
    tokenizer = chat_tokenizer()
    messages = [{"role": role, "content": content} for role, content in TURNS]
    try:
        ids, mask, _ = render([{"messages": messages}], tokenizer, chat=Chat(template=ChatTemplate(template)))
    except TokenfeedError:
        return
    replies = [tokenizer.encode(content).tolist() for role, content in TURNS if role == "assistant"]
    ends = [find(ids.tolist(), reply) + len(reply) for reply in replies]
    ends = [end for end in ends if end < len(ids)]  # nothing follows the last turn of GLM
    assert [tokenizer.decode(ids[end : end + 1]) for end in ends] == stops
    assert mask[ends].all()


def find(tokens, part):
    return next(i for i in range(len(tokens)) if tokens[i : i + len(part)] == part)


# Tokenizers in other processes


class Twice(Tokenizer):
    """A tokenizer of a user's own, by which every document comes twice as long."""

    def encode_batch(self, texts, **options):
        return super().encode_batch([text + text for text in texts], **options)


@pytest.mark.xfail(
    strict=True, raises=AssertionError, reason="floor 3: a subclass is pickled as the class it was made from"
)
def test_a_tokenizer_of_ones_own_is_used_in_other_processes(tmp_path):
    """A tokenizer with an `encode_batch` of its own gives the same tokens in processes, or is refused there."""
    path = write_jsonl(tmp_path / "a.jsonl", numbered(50))
    own = Twice(golden_tokenizer().vocabulary)
    expected = prepare(path, tmp_path / "here", own, workers=0)
    try:
        tokens = prepare(path, tmp_path / "there", own, workers=1, engine="processes")
    except TokenfeedError:
        return
    assert len(expected) > len(prepare(path, tmp_path / "plain", workers=0))
    assert tokens == expected


# What is read, and how much

MISSING = """
import json, os, sys, threading
from pathlib import Path
import tokenfeed
import tokenfeed.loader.feed
from golden import golden_tokenizer

tokenfeed.loader.feed._PATIENCE_SECONDS = 0.1    # `close` itself takes five seconds, which is another defect
folder = Path(sys.argv[1])
(folder / "files.json").write_text(json.dumps({"version": 1, "train": ["a.jsonl", "missing.jsonl"], "val": []}))
how = {"batch_size": 1, "length": 64, "val": None, "rank": 0, "world_size": 1}
feed = tokenfeed.stream(folder, golden_tokenizer(), threads=3, **how)
next(feed)

# Goes on once the stream has looked for the file in vain.
stat, looked = os.stat, threading.Event()

def look(path, *arguments, **options):
    if str(path).endswith("missing.jsonl"):
        looked.set()
    return stat(path, *arguments, **options)

os.stat = look
looked.wait(5)
feed.close()
print("ready", flush=True)
"""


@pytest.mark.xfail(
    strict=True, raises=subprocess.TimeoutExpired, reason="floor 3: the thread that waits for a file holds up the exit"
)
def test_a_process_ends_while_a_listed_file_is_missing(tmp_path):
    """A process ends at once after `close`, also while a stream waits for a file that is listed and not there yet."""
    write_jsonl(tmp_path / "a.jsonl", numbered(1200))
    assert run_child(MISSING, str(tmp_path)).returncode == 0


FAR = pytest.mark.xfail(strict=True, raises=ValueError, reason="floor 3: a dot in a column's name is taken for a path")


@pytest.mark.parametrize("place", ["local", pytest.param("far", marks=FAR)])
def test_a_column_of_parquet_with_a_dot_in_its_name(tmp_path, place):
    """The column of text may have a dot in its name, locally and on a server."""
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"meta.text": numbered(20), "meta.id": range(20)}), path)
    with FlakyServer() as server:
        server.put("/a.parquet", path.read_bytes())
        with stream(path if place == "local" else server.url("/a.parquet"), key="meta.text", epochs=1) as feed:
            assert set(said_in(feed)) == set(range(20))


@pytest.mark.xfail(
    strict=True, raises=AssertionError, reason="floor 3: documents are held out by a hash of their text, so all is read"
)
def test_held_out_text_is_found_without_reading_the_rest():
    """Only blocks that are held out are read for validation: a fifth takes less than half of the bytes."""
    letters = np.random.default_rng(0).integers(97, 123, (240, 1800), np.uint8)
    letters[:, ::6] = ord(" ")
    written = io.BytesIO()
    table = pa.table({"text": [bytes(row).decode() for row in letters]})
    pq.write_table(table, written, row_group_size=6, use_dictionary=False, compression="none")
    with FlakyServer() as server:
        server.put("/a.parquet", written.getvalue())
        with stream(server.url("/a.parquet"), split="val", val=0.2, epochs=1) as feed:
            assert sum(len(batch) for batch in feed) > 5
        assert server.bytes_sent("/a.parquet") < len(written.getvalue()) / 2


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="floor 3: a seed needs the number of lines of every file")
def test_a_shuffled_stream_of_lines_begins_without_reading_all():
    """A stream of JSONL with a seed reads a few blocks before its first batch, and not the corpus."""
    line = json.dumps({"text": "word " * 2000}).encode() + b"\n"
    with FlakyServer() as server:
        server.put("/a.jsonl", line * ((160 << 20) // len(line)))
        with stream(server.url("/a.jsonl"), seed=1) as feed:
            next(feed)
        assert server.bytes_sent("/a.jsonl") < 100 << 20
