"""Versions of a store: every one that was sealed stays openable, and a later one begins with the earlier ones."""

import json
import pickle
import shutil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tokenfeed
from tokenfeed.errors import ArgumentError, CorruptionError, MissingError
from tokenfeed.store.sealing import load_manifest, unseal
from tokenfeed.store.verify import verify

COLUMNS = {"tokens": "uint16"}


def add(path, name, tokens, **options):
    given = {"mode": "append", "columns": COLUMNS, "spans": {"documents": "json"}, "shard_bytes": 1, "sync": False}
    with tokenfeed.Writer(path, name=name, **given | options) as writer:
        for each in tokens:
            writer.append({"tokens": each}, documents=name)


def tokens_of(store):
    return store.windows(1, extra=0)[:].tokens.ravel().tolist()


documents = st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=4), min_size=1, max_size=3)


@given(st.lists(st.tuples(st.integers(0, 99), st.sampled_from([None, "train", "val"]), documents), max_size=6))
def test_every_version_stays_as_it_was(tmp_path_factory, growths):
    """Whatever names the new shards have: the items of a version are those of the one before, then the new ones."""
    path = tmp_path_factory.mktemp("store")
    add(path, "first", [[7], [8, 9]])
    expected = [(tokens_of(tokenfeed.open(path, split="all")), tokenfeed.open(path, split="all").identity)]
    for number, (name, split, added) in enumerate(growths):
        add(path, f"{name:02}-{number}", added, split=split)
        store = tokenfeed.open(path, split="all")
        assert tokens_of(store) == expected[-1][0] + [token for each in added for token in each]
        expected.append((tokens_of(store), store.identity))
    newest = tokenfeed.open(path, split="all")
    assert [each.identity for each in newest.versions] == [identity for _, identity in expected]
    assert [each.items for each in newest.versions] == [len(tokens) for tokens, _ in expected]
    for number, (tokens, identity) in enumerate(expected, 1):
        store = tokenfeed.open(path, split="all", version=number)
        assert (tokens_of(store), store.identity, store.version) == (tokens, identity, number)
        assert store.versions == newest.versions
        for view in (store.windows(2), store.documents()):
            later = newest.view(view.spec)
            np.testing.assert_array_equal(later[: len(view)].tokens, view[:].tokens)
        train = tokenfeed.open(path, version=number)
        assert train.identity == tokenfeed.open(path).versions[number - 1].identity
        assert tokens_of(tokenfeed.open(path))[: train.num_items] == tokens_of(train)
    assert verify(path).ok


def test_a_first_version_says_nothing_in_the_manifest(tmp_path):
    add(tmp_path, "a", [[1]])
    assert "versions" not in json.loads((tmp_path / "manifest.json").read_text())
    tokenfeed.seal(tmp_path)
    assert [each.number for each in tokenfeed.open(tmp_path).versions] == [1]


def test_a_pickled_view_keeps_its_version(tmp_path):
    add(tmp_path, "b", [[1, 2], [3]])
    view = tokenfeed.open(tmp_path).documents()
    pickled = pickle.dumps(view)
    add(tmp_path, "a", [[4]])
    assert pickle.loads(pickled).identity == view.identity
    assert len(pickle.loads(pickled)) == 2


def test_a_combined_store_keeps_the_versions_of_its_parts(tmp_path):
    add(tmp_path / "a", "x", [[1]])
    add(tmp_path / "b", "x", [[2]])
    tokenfeed.combine([tmp_path / "a", tmp_path / "b"], tmp_path / "all")
    add(tmp_path / "a", "w", [[3]])
    assert tokens_of(tokenfeed.open(tmp_path / "all")) == [1, 2]
    assert tokenfeed.open(tmp_path / "all").versions == []
    with pytest.raises(ArgumentError, match="combined store"):
        tokenfeed.open(tmp_path / "all", version=1)


def test_versions_that_are_not_there(tmp_path):
    add(tmp_path / "store", "a", [[1]])
    np.save(tmp_path / "tokens.npy", np.arange(9, dtype=np.uint16))
    for number in (0, 2, -1):
        with pytest.raises(MissingError, match=rf"has no version {number}; it has versions 1 to 1"):
            tokenfeed.open(tmp_path / "store", version=number)
    with pytest.raises(ArgumentError, match="has no versions"):
        tokenfeed.open(tmp_path / "tokens.npy", version=1)
    with pytest.raises(ArgumentError, match="of one store"):
        tokenfeed.open([tmp_path / "store", tmp_path / "store"], version=1)
    writer = tokenfeed.Writer(tmp_path / "new", columns=COLUMNS)
    with pytest.raises(MissingError, match="never sealed"):
        tokenfeed.open(tmp_path / "new", version=1)
    writer.abort()


@pytest.mark.parametrize("damage", ["gone", "changed"])
def test_growth_that_removed_or_changed_a_shard(tmp_path, damage):
    path = tmp_path / "store"
    add(path, "a", [[1], [2]])
    add(path, "b", [[3]])
    if damage == "gone":
        shutil.rmtree(path / "a-00001")
    else:
        add(tmp_path / "other", "a", [[1], [5]])
        shutil.copytree(tmp_path / "other" / "a-00001", path / "a-00001", dirs_exist_ok=True)
    told = "is gone" if damage == "gone" else "has changed"
    with pytest.raises(
        CorruptionError, match=rf"a-00001, a shard of version 2 of the store, {told}.*replace_changed=True"
    ):
        tokenfeed.seal(path)
    with pytest.raises(CorruptionError, match=told):
        add(path, "c", [[4]])
    if damage == "gone":  # an unsealed store is listed, which shows what is missing
        with pytest.raises(CorruptionError, match=told):
            tokenfeed.open(path)
    tokenfeed.seal(path, replace_changed=True)
    now = tokenfeed.open(path)
    assert tokens_of(now) == ([1, 3, 4] if damage == "gone" else [1, 5, 3, 4])
    assert [each.identity is None for each in now.versions] == [True, True, False]
    with pytest.raises(CorruptionError, match=r"version 1 of .* is lost"):
        tokenfeed.open(path, version=1)


def test_a_list_that_was_forgotten_keeps_its_numbers(tmp_path):
    """What `prepare` does before it removes shards: a later version has a later number."""
    add(tmp_path, "a", [[1]])
    unseal(tmp_path, sync=False, forget=True)
    shutil.rmtree(tmp_path / "a-00000")
    add(tmp_path, "b", [[2]])
    assert [each.shards for each in load_manifest(tmp_path).versions] == [1, 1]
    assert tokens_of(tokenfeed.open(tmp_path, version=2)) == [2]
    with pytest.raises(CorruptionError, match="is lost"):
        tokenfeed.open(tmp_path, version=1)
