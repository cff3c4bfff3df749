"""Watching a run: the page and `top` never call a run good that is not, and nothing of its history or ranks is lost.

Loaders, publishers, the page's answers and the command are real. Only the clock is the test's: a minute passes when it
says so, and every publisher writes once a second, or as often as it was told.
"""

import math
import re
import subprocess
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

import tokenfeed
from command_line import run
from plain import make_documents
from tiers import slow
from tokenfeed import observe
from tokenfeed.ui.live import Live

WAYS = ("page", "top")
MOST_BYTES = 4 << 20
"""What a rank may leave on disk."""
_FINE = re.compile(r"(Rank \d+: )?(Nothing to gain|The loader ended|There is only one snapshot)")
"""How `top` begins what it says of a rank with which nothing is wrong."""


def publish(loader, path, *, every=1):
    """The publisher of a loader. Its thread never writes in these tests: `write` does, when the clock says so."""
    publisher = observe.publish(loader, path, every=3600)
    publisher._last = replace(publisher._last, every=float(every))
    return publisher


def write(publisher):
    """What the thread of a publisher does every so often."""
    publisher._write(ended=False)


def page(path):
    """What the page is told."""
    return Live(path).tell(0)


def is_good(way, path):
    """Whether the page, or `top`, says that nothing is wrong."""
    if way == "page":
        return page(path)["verdict"]["level"] in ("good", "idle")
    lines = run("top", path, "--once").stdout.splitlines()
    told = [line for line in lines if re.match(r"[A-Z][a-z]+ ", line)]
    if not told:
        raise LookupError(f"top says nothing of how the run is: {lines}")
    return all(_FINE.match(line) for line in told)


def shown_ranks(way, path):
    """The ranks that the page, or `top`, shows."""
    if way == "page":
        return {each["rank"] for each in page(path)["loaders"]}
    return {int(rank) for rank in re.findall(r"^ *(\d+) of \d+ ", run("top", path, "--once").stdout, re.MULTILINE)}


def first_seen(path, name):
    """When the page begins to know each rank, in seconds since 1970, and the first step of a number that was logged."""
    told = page(path)
    return {each["rank"]: each["points"][0][0] for each in told["loaders"]}, told["scalars"][name][0][0]


class Clock:
    """The time of day and the seconds of a stopwatch, in every module of tokenfeed that asks for them."""

    def __init__(self, monkeypatch):
        self.began, self.passed = time.time(), 0.0
        now = {"time": lambda: self.began + self.passed, "perf_counter": lambda: self.passed}
        fake = SimpleNamespace(**{**vars(time), **now})
        for name, module in list(sys.modules.items()):
            if name.partition(".")[0] == "tokenfeed" and vars(module).get("time") is time:
                monkeypatch.setattr(module, "time", fake)


class Training:
    """Ranks of one run, all in this process, that publish into the file of the run."""

    def __init__(self, clock, path, loaders, *, every=1):
        self._clock, self._every, self.loaders = clock, every, loaders
        self.publishers = [publish(loader, path, every=every) for loader in loaders]

    def train(self, seconds, *, hangs=False, log=lambda: ()):
        """Every rank takes a batch and publishes, again and again; it takes none in a run that hangs.

        `log` gives (step, numbers) of what the training loop logs on every rank meanwhile.
        """
        for _ in range(0, seconds, self._every):
            for loader in () if hangs else self.loaders:
                next(loader)
            self._clock.passed += self._every
            for publisher in self.publishers:
                for step, values in log():
                    publisher.log(step, values)
                write(publisher)

    def close(self):
        for publisher, loader in zip(self.publishers, self.loaders, strict=True):
            publisher.close()
            loader.close()


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.stats.jsonl"


@pytest.fixture
def ranks(store_path):
    """Makes loaders: of all ranks, or of some."""

    def make(world_size, only=None, *, store=store_path, **options):
        view = tokenfeed.open(store).windows(16)
        numbers = range(world_size) if only is None else only
        options = {"prefetch": 0, **options}
        return [tokenfeed.Loader(view, 4, rank=rank, world_size=world_size, **options) for rank in numbers]

    return make


@pytest.fixture
def train(clock, path):
    made = []

    def make(loaders, **options):
        made.append(Training(clock, path, loaders, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


def wrong(way, reason):
    """A way for which a test fails today."""
    mark = pytest.mark.xfail(strict=True, raises=AssertionError, reason=f"floor 5: {reason}")
    return pytest.param(way, marks=mark)


@pytest.mark.parametrize("way", WAYS)
def test_a_healthy_run_is_good(way, ranks, train, path):
    """A run in which every rank takes batches is good, so that what follows says something."""
    train(ranks(4)).train(90)
    assert is_good(way, path)


@pytest.mark.parametrize("way", [wrong(way, "a run in which no token flows is told as good") for way in WAYS])
def test_a_run_that_hangs_is_not_good(way, ranks, train, path):
    """A run is not good when no rank has taken a batch for a minute, as when one hangs and the others wait for it."""
    training = train(ranks(4))
    training.train(30)
    training.train(90, hangs=True)
    assert not is_good(way, path)


DIES = """
import sys, tokenfeed
from tokenfeed import observe
view = tokenfeed.open(sys.argv[1]).windows(16)
loader = tokenfeed.Loader(view, 4, rank=3, world_size=4)
observe.publish(loader, sys.argv[2], every=0.1)
for number, batch in enumerate(loader):
    if number == 10:
        raise RuntimeError("loss is not finite")
"""


@pytest.mark.parametrize(
    "way", [wrong(way, "a rank that died of an exception is told as one that has ended") for way in WAYS]
)
def test_a_rank_that_raised_is_not_good(way, ranks, train, path, store_path):
    """A run is not good when a rank ended in the middle by an exception, while the others go on."""
    training = train(ranks(4, only=[0, 1, 2]))
    training.train(10)
    done = subprocess.run([sys.executable, "-c", DIES, store_path, path], capture_output=True, text=True)
    if "loss is not finite" not in done.stderr:
        raise LookupError(done.stderr)
    training.train(20)
    assert 3 in shown_ranks(way, path)
    assert not is_good(way, path)


@pytest.mark.parametrize("way", ["page", wrong("top", "top says nothing of a rank that has published nothing")])
def test_a_rank_without_news_is_not_good(way, ranks, train, path):
    """A run is not good when one of its ranks has never published anything."""
    train(ranks(4, only=[0, 1, 2])).train(30)
    assert not is_good(way, path)


@pytest.mark.parametrize("way", WAYS)
def test_a_rank_that_fell_silent_is_not_good(way, ranks, train, path):
    """A run is not good when a rank has published before, and no longer does."""
    loaders = ranks(4)
    train(loaders[3:]).train(10)
    train(loaders[:3]).train(30)
    assert not is_good(way, path)


@pytest.mark.parametrize("way", [wrong(way, "hundreds of losses that are NaN change no verdict") for way in WAYS])
def test_losses_that_are_no_numbers_are_not_good(way, ranks, train, path):
    """A run is not good when its losses are NaN."""
    training = train(ranks(2))
    steps = iter(range(10**6))
    training.train(20, log=lambda: [(next(steps), {"loss": 2.5})])
    training.train(300, log=lambda: [(next(steps), {"loss": math.nan})])
    assert not is_good(way, path)


@pytest.mark.parametrize("way", [wrong(way, "ranks of two different plans are told as good") for way in WAYS])
@pytest.mark.parametrize("what", ["seed", *slow("data")])
def test_ranks_that_differ_are_not_good(way, what, ranks, train, path, tmp_path):
    """A run is not good when its ranks have different plans, or read different data."""
    other = tmp_path / "other"
    make_documents([50] * 200, seed=1).write(other)
    differs = {"seed": 1} if what == "seed" else {"store": other}
    train([*ranks(4, only=[0, 1, 2]), *ranks(4, only=[3], **differs)]).train(30)
    assert not is_good(way, path)


NAMES = [f"loss of the documents of source {number} of the mixture, mean" for number in range(4)]


@pytest.mark.parametrize("every", [10, *slow(1)])
@pytest.mark.xfail(
    strict=True, raises=AssertionError, reason="floor 5: all ranks share two files of 4 MiB, and the older is replaced"
)
def test_the_whole_run_is_on_disk(every, ranks, train, path, clock):
    """Loss and rates of an hour of eight ranks are there from the first minute on, in at most 4 MiB a rank."""
    training = train(ranks(8), every=every)
    training.train(3600, log=lambda: [(int(clock.passed), dict.fromkeys(NAMES, 2.5))] * every)
    used = sum(each.stat().st_size for each in path.parent.glob("run.stats*"))
    by_rank, first_step = first_seen(path, NAMES[0])
    assert by_rank.keys() == set(range(8))
    assert used <= 8 * MOST_BYTES
    assert max(by_rank.values()) - clock.began <= 60
    assert first_step <= 60


def test_top_shows_all_ranks_that_log_much(ranks, train, path):
    """Every rank is shown, however much each of 128 has logged since it wrote last."""
    training = train(ranks(128))
    training.train(2, log=lambda: [(step, dict.fromkeys(NAMES, 2.5)) for step in range(40)])
    assert shown_ranks("top", path) == set(range(128))


@pytest.mark.slow
@pytest.mark.parametrize("way", [wrong("page", "the page keeps 512"), "top"])
def test_every_one_of_many_ranks_is_shown(way, ranks, train, path):
    """Of 4,096 ranks that publish, the page and `top` know every one."""
    train(ranks(4096))
    assert shown_ranks(way, path) == set(range(4096))
