"""The counters as a dictionary and as OpenMetrics text, which a strict parser of its own reads back."""

import re
import string
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenfeed.errors import ArgumentError
from tokenfeed.loader.delivery import Stats
from tokenfeed.observe import metrics as module
from tokenfeed.observe import to_dict, to_openmetrics
from tokenfeed.storage.remote import RemoteStats

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
SAMPLE = re.compile(rf"({NAME})(?:\{{(.*)\}})? (\S+)")
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\[\\"n])*)"(?:,|$)')

counts = st.integers(0, 2**60)
seconds = st.floats(0, 1e12)
remotes = st.builds(RemoteStats, **dict.fromkeys(RemoteStats.__slots__[:-1], counts), cache_is_full=st.booleans())
all_stats = st.builds(
    Stats,
    batches=counts,
    samples=counts,
    bytes=counts,
    wall_seconds=seconds,
    wait_seconds=seconds,
    read_seconds=seconds,
    queued=counts,
    remote=st.none() | remotes,
    items=counts,
    collate_seconds=seconds,
    encode_seconds=st.none() | seconds,
    threads=counts,
    prefetch=counts,
)


def parse(text):
    """{family: (type, unit, {labels: value})}. Asserts what the standard demands of text."""
    assert text.endswith("# EOF\n")
    families, current = {}, None
    for line in text[: -len("# EOF\n")].split("\n")[:-1]:
        if line.startswith("# "):
            _, word, name, rest = line.split(" ", 3)
            assert re.fullmatch(NAME, name)
            if name != current:
                assert word == "TYPE", "a family begins with its type"
                assert name not in families, "a family is in one piece"
                families[name] = {"samples": {}}
                current = name
            assert not families[name]["samples"], "what describes a family comes before its samples"
            assert word.lower() not in families[name]
            assert word in ("TYPE", "UNIT", "HELP")
            families[name][word.lower()] = rest
        else:
            name, labels, value = SAMPLE.fullmatch(line).groups()
            family = families[current]
            assert name == current + {"counter": "_total", "gauge": ""}[family["type"]]
            pairs = LABEL.findall(labels or "")
            assert "".join(f'{key}="{text}",' for key, text in pairs) == f"{labels}," if labels else not pairs
            unescaped = {key: re.sub(r"\\(.)", lambda m: "\n" if m[1] == "n" else m[1], text) for key, text in pairs}
            assert len(unescaped) == len(pairs)
            family["samples"][tuple(unescaped.items())] = float(value)
    for name, family in families.items():
        assert family["samples"]
        assert family["help"]
        assert "unit" not in family or name.endswith(f"_{family['unit']}")
    return families


letters = string.ascii_letters
label_names = st.builds(str.__add__, st.sampled_from(letters), st.text(letters + string.digits + "_", max_size=8))


@given(all_stats, st.dictionaries(label_names, st.text(st.characters(codec="utf-8")), max_size=3))
def test_openmetrics_says_what_the_dictionary_says(stats, labels):
    families = parse(to_openmetrics(stats, labels))
    told = {name.removeprefix("tokenfeed_"): family["samples"] for name, family in families.items()}
    assert told == {name: {tuple(labels.items()): value} for name, value in to_dict(stats, "").items()}


def test_every_counter_is_told():
    told = {metric.field for metric in (*module._METRICS, *module._REMOTE)}
    assert {field.name for kind in (Stats, RemoteStats) for field in fields(kind)} - told == {"remote"}


def test_values():
    stats = Stats(3, 96, 1024, 10.0, 2.5, 4.0, 2, RemoteStats(requests=7, cache_is_full=True), items=960, threads=2)
    told = to_dict(stats)
    assert told["tokenfeed/wait_ratio"] == 0.25
    assert told["tokenfeed/items"] == 960
    assert told["tokenfeed/remote_requests"] == 7
    assert told["tokenfeed/cache_full"] == 1
    assert "tokenfeed/encode_seconds" not in told
    assert all(type(value) is float for value in told.values())
    assert 'tokenfeed_wait_seconds_total{rank="3"} 2.5\n' in to_openmetrics(stats, {"rank": "3"})
    assert "# UNIT tokenfeed_read_bytes bytes\n" in to_openmetrics(stats)


def test_nothing_of_servers_where_there_are_none():
    assert not [name for name in to_dict(Stats(0, 0, 0, 0.0, 0.0, 0.0, 0)) if "remote" in name or "cache" in name]


@pytest.mark.parametrize("name", ["", "1st", "a-b", "__name__", "rang é"])
def test_labels_that_cannot_be(name):
    with pytest.raises(ArgumentError, match="not a valid label name"):
        to_openmetrics(Stats(0, 0, 0, 0.0, 0.0, 0.0, 0), {name: "x"})
