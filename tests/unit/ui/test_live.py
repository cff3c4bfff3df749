"""A stats file as it grows: nothing is read twice, nothing is missed, and no run is too long to be remembered."""

import os

import numpy as np
import pytest

import tokenfeed
from tokenfeed import observe
from tokenfeed.errors import ArgumentError, NotFoundError
from tokenfeed.loader.delivery import Stats
from tokenfeed.observe.snapshots import Snapshot
from tokenfeed.ui.live import Live, Logged, Point, Series


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
    assert [len(one["points"]) for one in history.tell(0)["loaders"]] == [3, 1]
    assert [len(one["points"]) for one in history.tell(3)["loaders"]] == [1, 0]
    assert [len(one["points"]) for one in history.tell(4)["loaders"]] == [0, 0]
    assert [point.number for point in first.series.after(1)] == [2, 4]
    assert [point.number for point in second.series.after(3)] == []
    assert first.last.stats.items == 2000
    assert first.series.points[-1].values[:6] == (2000, 2, 0.2, 3, 2, 10**8)
    assert sum(first.series.points[-1].values[6:]) == pytest.approx(0.2)  # by cause, it is what the loop waited


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
    append(path, *(line(second, pid=second) for second in range(600)))
    history = Live(path)
    history.update()
    assert len(history.loaders) == 512
    assert {source.last.pid for source in history.loaders.values()} == set(range(88, 600))
    assert [source.number for source in history.loaders.values()] == list(range(88, 600))


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


def ranks(path, seconds, *, dead_from=None, world_size=4):
    """Four ranks on another machine; one of them may be killed."""
    for second in seconds:
        for rank in range(world_size):
            if rank == 2 and dead_from is not None and second >= dead_from:
                continue
            stats = Stats(second, second, 0, float(second), 0.0, 0.0, 3, items=1000 * second, prefetch=4, threads=1)
            snapshot = Snapshot(1e9 + second, "elsewhere", rank, 0, rank, world_size, 1.0, 4, 0.0, 0, False, stats)
            append(path, snapshot.to_json())


def test_a_dead_rank_is_told_within_seconds_and_an_hour_later(tmp_path):
    """The others go on; the dead one stays, and what it delivered still counts."""
    path = tmp_path / "stats.jsonl"
    live = Live(path)
    ranks(path, range(10))
    told = live.tell(0, now=1e9 + 9)
    assert told["verdict"] == {
        "level": "good",
        "words": "4 of 4 ranks run; the loop waits 0.0% of the time at most.",
        "ranks": 4,
        "world_size": 4,
    }
    ranks(path, range(10, 25), dead_from=10)
    told = live.tell(0, now=1e9 + 24)
    assert (told["verdict"]["level"], told["verdict"]["ranks"]) == ("bad", 3)
    assert told["verdict"]["words"] == "Rank 2 is silent; 3 of 4 ranks run."
    ranks(path, range(3600, 3640), dead_from=10)
    told = live.tell(0, now=1e9 + 3639)
    assert told["verdict"]["words"] == "Rank 2 is silent; 3 of 4 ranks run."
    (dead,) = (one for one in told["loaders"] if one["rank"] == 2)
    assert (dead["state"], dead["is_past"], dead["items"]) == ("silent", False, 9000)
    late = Live(path)  # a page that is opened now, with a file that has lost the early lines
    path.write_text("".join(f"{each}\n" for each in path.read_text().split("\n")[-60:]))
    assert "Not heard of: rank 2" in late.tell(0, now=1e9 + 3639)["verdict"]["words"]


def test_a_rank_that_started_again_replaces_the_dead(tmp_path):
    path = tmp_path / "stats.jsonl"
    live = Live(path)
    ranks(path, range(10), dead_from=5)
    assert live.tell(0, now=1e9 + 9)["verdict"]["level"] == "bad"
    append(
        path,
        line(30, rank=2, pid=99)
        .replace('"world_size":2', '"world_size":4')
        .replace('"wall_seconds":30', '"wall_seconds":5'),
    )
    told = live.tell(0, now=1e9 + 30)
    assert [one["is_past"] for one in told["loaders"] if one["rank"] == 2] == [True, False]


def test_a_run_on_fewer_ranks_replaces_all_of_the_earlier_one(tmp_path):
    path = tmp_path / "stats.jsonl"
    ranks(path, range(10), dead_from=5)
    for rank in range(2):
        stats = Stats(5, 5, 0, 5.0, 0.0, 0.0, 3, items=5000, prefetch=4, threads=1)
        append(path, Snapshot(1e9 + 100, "elsewhere", 50 + rank, 0, rank, 2, 1.0, 4, 0.0, 0, False, stats).to_json())
    told = Live(path).tell(0, now=1e9 + 100)
    assert told["verdict"]["words"].startswith("2 of 2 ranks run")
    assert [one["rank"] for one in told["loaders"] if not one["is_past"]] == [0, 1]


def test_what_the_loop_logs(store_path, tmp_path):
    """Each value once, in the order of the steps, NaN as a gap; only the lowest rank counts."""
    path = tmp_path / "stats.jsonl"
    loader = tokenfeed.Loader(tokenfeed.open(store_path).windows(16), 4, rank=0, world_size=1)
    live = Live(path)
    with observe.publish(loader, path, every=3600, steps=50) as publisher:
        for step in range(5):
            observe.log(step, loss=10.0 - step, rate=float("nan"))
        publisher._write(ended=False)
        told = live.tell(0)
        assert [point[:2] for point in told["scalars"]["loss"]] == [[step, 10.0 - step] for step in range(5)]
        assert [point[1] for point in told["scalars"]["rate"]] == [None] * 5
        assert told["steps"] == 50
        observe.log(5, loss=np.float32(2.5))
        with pytest.raises(ArgumentError, match="loss is x"):
            observe.log(6, loss="x")
    again = live.tell(told["number"])
    assert [point[:2] for point in again["scalars"]["loss"]] == [[5, 2.5]]
    loader.close()
    with pytest.raises(ArgumentError, match=r"observe\.publish"):
        observe.log(7, loss=1.0)


def test_long_logs_keep_their_spikes():
    logged = Logged()
    for step in range(50_000):
        logged.add(step, step, 99.0 if step == 777 else 1.0, float(step))
    assert len(logged.points) <= 4000
    assert max(value for _, _, value, _ in logged.points) == 99.0
    assert [step for _, step, *_ in logged.points] == sorted(step for _, step, *_ in logged.points)
