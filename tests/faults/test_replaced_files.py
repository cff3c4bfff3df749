"""Files that are replaced, and folders that are swapped, under a reader. (What is cut short or deleted under one is in
`test_damage.py`; what `backend="mmap"` cannot survive is in the FAQ, and run there.)

A reader keeps the files that it has opened: whatever takes their names, it goes on reading what it began with. A file
that it opens later must be what the manifest, as it read it, says.
"""

import json
import shutil
import threading

import numpy as np
import pytest

import tokenfeed
from oracle import rows_of
from plain import frames_of, make_documents
from tokenfeed.errors import CorruptionError, PlanMismatchError, TokenfeedError
from tokenfeed.store.verify import verify

OTHER = make_documents([(11 * number * number) % 397 for number in range(120)], seed=9)


def take(loader, steps):
    return [row for _ in range(steps) for row in rows_of(next(loader))]


def make_loader(path, **options):
    return tokenfeed.Loader(tokenfeed.open(path, **options).windows(50), 8, prefetch=4)


def replace_everything(store_path, tmp_path):
    """Other bytes of the same sizes in the place of every column, each by one rename."""
    for file in store_path.rglob("tokens.npy"):
        data = bytearray(file.read_bytes())
        data[128:] = bytes(len(data) - 128)
        (tmp_path / "new").write_bytes(data)
        (tmp_path / "new").replace(file)


@pytest.mark.parametrize("backend", ["pread", "mmap"])
def test_a_file_replaced_under_a_reader(store_path, tmp_path, backend):
    """Not one byte of the new files is delivered, whether they are read or mapped."""
    expected = take(make_loader(store_path), 150)
    loader = make_loader(store_path, backend=backend)
    rows = take(loader, 75)  # every shard is open by now
    replace_everything(store_path, tmp_path)
    rows += take(loader, 75)
    assert rows == expected
    assert not verify(store_path).ok


def test_a_shard_swapped_for_another_under_a_loader(store_path, tmp_path):
    """The loader that runs does not see it; one that opens the store then is told."""
    expected = take(make_loader(store_path), 150)
    loader = make_loader(store_path)
    rows = take(loader, 75)  # every shard is open by now
    OTHER.write(tmp_path / "other", shard_bytes=40_000, name="part")
    (store_path / "part-00001").rename(tmp_path / "away")
    shutil.copytree(tmp_path / "other" / "part-00001", store_path / "part-00001")
    rows += take(loader, 75)
    assert rows == expected
    with pytest.raises(CorruptionError, match="part-00001"):
        take(make_loader(store_path), 75)
    assert any("part-00001" in problem for problem in verify(store_path, quick=True).problems)


def test_a_shard_swapped_before_it_was_opened(store_path, tmp_path):
    view = tokenfeed.open(store_path).windows(50)
    OTHER.write(tmp_path / "other", shard_bytes=40_000, name="part")
    shutil.rmtree(store_path / "part-00001")
    shutil.copytree(tmp_path / "other" / "part-00001", store_path / "part-00001")
    with pytest.raises(CorruptionError, match="part-00001"):
        view.read(np.arange(len(view)))


def test_a_manifest_that_is_rewritten_under_a_loader(store_path):
    """A store that grows and is sealed again and again: a loader goes on with what it opened, and its checkpoint is
    refused by what the store has become, or fits it exactly."""
    expected = take(make_loader(store_path), 200)
    loader = make_loader(store_path)
    stop, failures = threading.Event(), []

    def grow():
        columns = {"tokens": "uint16", "frame": ("uint8", (2, 3))}
        number = 0
        try:
            while not stop.wait(0.001):
                tokens = np.full(60, number, np.uint16)
                with tokenfeed.Writer(
                    store_path,
                    mode="append",
                    columns=columns,
                    spans={"documents": "json", "concepts": "msgpack"},
                    name=f"z{number:05}",
                ) as writer:
                    writer.append({"tokens": tokens, "frame": frames_of(tokens)}, documents=number)
                number += 1
                assert tokenfeed.open(store_path).num_items > 0
        except Exception as error:  # noqa: BLE001 — raised by the test
            failures.append(error)

    thread = threading.Thread(target=grow)
    thread.start()
    try:
        rows = take(loader, 200)
    finally:
        stop.set()
        thread.join()
    assert not failures, failures
    assert rows == expected
    assert verify(store_path).ok
    grown = make_loader(store_path)
    assert grown.plan != loader.plan
    with pytest.raises(PlanMismatchError):
        grown.load_state_dict(loader.state_dict())


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "\0" * 400, '{"format": "tokenfeed"}'])
def test_a_manifest_that_is_replaced_by_something_else(store_path, text):
    """Who reads goes on; who opens is told; and a writer does not make it worse."""
    expected = take(make_loader(store_path), 20)
    loader = make_loader(store_path)
    rows = take(loader, 10)
    manifest = store_path / "manifest.json"
    before = manifest.read_text()
    manifest.write_text(text)
    rows += take(loader, 10)
    assert rows == expected
    for action in (tokenfeed.open, tokenfeed.seal, lambda path: tokenfeed.Writer(path, columns={"tokens": "uint16"})):
        with pytest.raises(TokenfeedError, match=r"manifest\.json"):
            action(store_path)
    assert manifest.read_text() == text
    manifest.write_text(before)
    assert json.loads(before)["shards"]
    assert take(make_loader(store_path), 20) == expected
