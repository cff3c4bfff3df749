"""A stats file as it grows: nothing is read twice, nothing is missed, and no run is too long to be remembered."""

import os

import pytest

import tokenfeed
from tokenfeed import observe
from tokenfeed.errors import NotFoundError
from tokenfeed.loader.delivery import Stats
from tokenfeed.observe.snapshots import Snapshot
from tokenfeed.ui.live import Live, Point, Series


def line(second: float, *, rank: int = 0, pid: int = 1, items: int | None = None, ended: bool = False) -> str:
    stats = Stats(
        int(second), int(second), 0, second, second / 10, 0.0, 3, items=int(1000 * second) if items is None else items
    )
    return Snapshot(1e9 + second, "elsewhere", pid, 0, rank, 2, 1.0, 4, second, 10**8, ended, stats).to_json()


def append(path, *lines: str) -> None:
    with path.open("a") as file:
        file.write("".join(f"\n{each}\n" for each in lines))


def times(history: Live) -> list[list[float]]:
    return [[point.time - 1e9 for point in source.series.points] for source in history.loaders.values()]


def test_only_what_is_new_is_read(tmp_path):
    path = tmp_path / "run.stats.jsonl"
    history = Live(path)
    with pytest.raises(NotFoundError, match=r"observe\.publish"):
        history.update()
    append(path, line(0), line(1), line(1, rank=1, pid=2))
    history.update()
    assert times(history) == [[0, 1], [1]]
    path.write_bytes(b"x" * path.stat().st_size)  # what was read is not looked at again
    append(path, line(2))
    history.update()
    assert times(history) == [[0, 1, 2], [1]]
    first, second = history.loaders.values()
    assert history.number == 4
    assert [point.number for point in first.series.after(1)] == [2, 4]
    assert [point.number for point in second.series.after(3)] == []
    assert first.last.stats.items == 2000
    assert first.series.points[-1].values == (2000, 2, 0.2, 3, 2, 10**8)


def test_half_a_line_is_read_once_it_is_whole(tmp_path):
    path = tmp_path / "stats.jsonl"
    append(path, line(0))
    history = Live(path)
    text = line(1)
    with path.open("a") as file:
        file.write(f"\n{text[:50]}")
        file.flush()
        history.update()
        assert times(history) == [[0]]
        file.write(f"{text[50:]}\n")
    history.update()
    assert times(history) == [[0, 1]]
    with path.open("a") as file:
        file.write('{"time": 17')  # as a kill leaves it
    append(path, line(2))
    history.update()
    assert times(history) == [[0, 1, 2]]


def test_a_file_that_is_set_aside_is_read_to_its_end(tmp_path):
    path = tmp_path / "stats.jsonl"
    append(path, line(0))
    path.rename(tmp_path / "stats.jsonl.1")
    append(path, line(1))
    history = Live(path)
    history.update()
    assert times(history) == [[0, 1]]
    append(path, line(2))
    path.rename(tmp_path / "stats.jsonl.1")
    history.update()
    append(path, line(3))
    history.update()
    assert times(history) == [[0, 1, 2, 3]]
    path.write_text(f"\n{line(4)}\n")  # begun anew in place, and shorter
    history.update()
    path.write_text("")
    history.update()
    append(path, line(5))
    history.update()
    assert times(history)[0][-1] == 5


def test_a_real_publisher_that_sets_files_aside(store_path, tmp_path):
    """Every snapshot that was written is read, whenever it is looked for."""
    path = tmp_path / "stats.jsonl"
    loader = tokenfeed.Loader(tokenfeed.open(store_path).windows(16), 4, rank=0, world_size=1)
    history = Live(path)
    publisher = observe.publish(loader, path, every=3600, max_bytes=4096)
    for number in range(40):
        next(loader)
        publisher._write(ended=False)
        if number % 3 == 0:
            history.update()
    history.update()
    (source,) = history.loaders.values()
    assert [snapshot.stats.batches for snapshot in source.latest] == list(range(41))
    publisher.close()
    loader.close()


def test_long_runs_are_thinned(tmp_path):
    """Two days at a snapshot a second: the last ten minutes are whole, the rest is evenly spread."""
    series = Series()
    for second in range(172_800):
        series.add(Point(second + 1, float(second), (second,)))
        assert len(series.points) <= 1500
    gaps = [after.time - before.time for before, after in zip(series.points, series.points[1:], strict=False)]
    assert gaps[-599:] == [1.0] * 599
    assert series.points[0].time == 0
    assert len(gaps) > 900
    assert max(gaps) <= 1024
    assert max(gaps[:300]) <= 2 * min(gaps[:300]), "evenly spread"
    assert not series.add(Point(0, 172_799.5, (0,)))


def test_sources_are_bounded(tmp_path):
    path = tmp_path / "stats.jsonl"
    append(path, *(line(second, pid=second) for second in range(200)))
    history = Live(path)
    history.update()
    assert len(history.loaders) == 64
    assert {source.last.pid for source in history.loaders.values()} == set(range(136, 200))
    assert [source.number for source in history.loaders.values()] == list(range(136, 200))


def test_a_large_file_is_read_from_near_its_end(tmp_path):
    """64 GB, most of them a hole: no memory would hold them."""
    path = tmp_path / "stats.jsonl"
    text = line(7)
    path.touch()
    os.truncate(path, 64 << 30)
    with path.open("a") as file:
        file.write(f"\n{text}\n" * ((9 << 20) // len(text)) + line(9) + "\n")
    history = Live(path)
    history.update()
    assert history.loaders[("elsewhere", 1, 0)].last.stats.batches == 9
    assert len(history.loaders[("elsewhere", 1, 0)].latest) == 128
