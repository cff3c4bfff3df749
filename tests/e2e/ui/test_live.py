"""The view Now in a real browser, beside real loaders in processes of their own."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time

import pytest

from tokenfeed.loader.delivery import Stats
from tokenfeed.observe.snapshots import Snapshot

# Trains until it is killed. Making batches takes long while there is a file called "slow".
SCRIPT = """
import os, sys, time, tokenfeed
from tokenfeed import observe

store, run, slow, rank, size = sys.argv[1:]

def collate(batch):
    if os.path.exists(slow):
        time.sleep(0.05)
    return batch

loader = tokenfeed.Loader(
    tokenfeed.open(store).windows(64),
    4,
    rank=int(rank),
    world_size=int(size),
    prefetch=2,
    collate=collate,
    run=run if rank == "0" else None,
)
observe.publish(loader, run.removesuffix(".jsonl") + ".stats.jsonl", every=0.2, steps=10**6)
for step, batch in enumerate(loader):
    observe.log(step, loss=1 / (step + 1))
    time.sleep(0.005)
"""
FIGURES = ["Tokens a second", "Waiting, by cause", "Cores busy", "Memory"]


@pytest.fixture
def training(made, tmp_path):
    """(start ranks: their processes; the run file; the file that makes them slow)."""
    run, slow = tmp_path / "run.jsonl", tmp_path / "slow"
    with contextlib.ExitStack() as stack:

        def start(size):
            words = [[sys.executable, "-c", SCRIPT, made.web, run, slow, str(rank), str(size)] for rank in range(size)]
            ranks = [stack.enter_context(subprocess.Popen(each)) for each in words]
            for each in ranks:
                stack.callback(each.kill)
            return ranks

        yield start, run, slow


def until(page, text: str) -> None:
    """Wait for the words."""
    page.page.locator("#now .words", has_text=text).wait_for(timeout=60_000)


def delivered(page) -> int:
    told = page.page.locator(".tile", has_text="delivered").locator("small").inner_text()
    return int(re.search("in ([0-9,]+) batches", told)[1].replace(",", ""))


@pytest.mark.slow
def test_a_loader_is_seen_to_run_and_to_wait(training, start_server, visit):
    start, run, slow = training
    start(1)
    page = visit(start_server(run))  # before there is a run file
    section = page.open("Now")
    section.locator(".state", has_text="running").wait_for(timeout=60_000)
    page.page.locator("nav").get_by_role("link", name="Trace").wait_for()
    counts = [delivered(page)]
    while len(set(counts)) < 3:
        page.page.wait_for_timeout(100)
        counts.append(delivered(page))
    assert counts == sorted(counts)
    shown = section.locator(".figure:visible h3").all_inner_texts()
    assert shown == ["loss", *FIGURES]
    assert re.match(r"step [\d,]+ of 1,000,000 · epoch \d", page.page.locator("#progress").inner_text())
    slow.touch()
    until(page, "collate is the bottleneck")
    assert "warm" in section.locator(".tile", has_text="waits for data").locator("strong").get_attribute("class")
    assert page.page.locator("#health").inner_text() == "attention"
    assert page.page.title().startswith("⚠ ")
    # Over steps, each chart begins and ends with a step; a run that runs is trained on now.
    section.get_by_role("button", name="step", exact=True).click()
    assert re.search(r"step [\d,]+step [\d,]+step [\d,]+", section.get_by_role("img", name="Memory").text_content())
    assert "axis=step" in page.page.url
    assert section.get_by_role("heading", name="Being trained on now").count() == 1
    # A click on the loss leads to the rows of that step.
    section.get_by_role("img", name="loss").click()
    page.page.wait_for_selector("section[aria-label='Trace']:not([hidden]) h2:has-text('Step')")
    assert "step=" in page.page.url


@pytest.mark.slow
def test_a_killed_rank_of_four_is_told_and_stays(training, start_server, visit):
    start, run, _ = training
    ranks = start(4)
    page = visit(start_server(run))
    page.open("Now")
    page.page.locator(".tile", has_text="ranks heard").get_by_text("4 of 4").wait_for(timeout=120_000)
    before = delivered(page)
    os.kill(ranks[2].pid, signal.SIGKILL)
    ranks[2].wait()
    began = time.monotonic()
    until(page, "Rank 2 is dead; 3 of 4 ranks run.")
    assert time.monotonic() - began < 15, "the bar: it is told within 15 seconds"
    assert page.page.title().startswith("✖ ")
    assert page.page.locator("#icon").get_attribute("href") == "icon-bad.svg"
    page.open("Data")
    assert page.page.locator("#health").inner_text() == "trouble"
    section = page.open("Now")
    first = section.locator(".strips li").first
    assert first.locator(".who").inner_text().split() == ["rank", "2", "dead"]
    assert delivered(page) >= before
    assert section.get_by_role("heading", name="Last rows trained on").count() == 1
    first.get_by_role("button", name="Dismiss").click()
    section.get_by_text("3 of 4 ranks run; the dead are dismissed.").first.wait_for()
    assert section.locator(".state", has_text="dead").count() == 0


def write_ranks(path, now: float) -> None:
    """Five minutes of three ranks on other machines: one runs, one ended, one is not heard of. And one long ago."""
    lines = []
    for rank in range(3):
        for second in range(-300, 1 if rank == 0 else -5):
            ended = rank == 1 and second == -6
            done = 300 + second
            stats = Stats(done, done, 0, done, done * 0.1 * rank, 0.0, 4, items=1000 * done, threads=1, prefetch=8)
            every = 1.0 if rank else 60.0  # so that it counts as running until the test is over
            one = Snapshot(now + second, f"host{rank}", 7, 0, rank, 3, every, 8, 1.5 * done, 10**9, ended, stats)
            lines.append(one.to_json())
    old = Stats(5, 5, 0, 5.0, 0.0, 0.0, 0, items=5000)
    lines.insert(0, Snapshot(now - 400, "host0", 6, 0, 0, 1, 1.0, 8, 1.0, 10**9, True, old).to_json())
    path.write_text("".join(f"\n{line}\n" for line in lines))


@pytest.fixture
def ranks_server(tmp_path, start_server):
    path = tmp_path / "ranks.stats.jsonl"
    write_ranks(path, time.time())
    return start_server(path)


def test_ranks_over_time(ranks_server, visit):
    """The worst rank first, each with a strip; charts of all together, whose values keys read."""
    page = visit(ranks_server)
    section = page.open("Now")
    section.locator(".state").nth(2).wait_for()
    assert section.locator(".who").all_inner_texts() == ["rank 2\nsilent", "rank 0\nrunning", "rank 1\nended"]
    assert "1 earlier, shown only in the charts" in section.inner_text()
    words = section.locator(".words p").all_inner_texts()
    assert words[0] == "Rank 2 is silent; 1 of 3 ranks runs."
    assert words[1].startswith("Rank 2: Process 7 wrote its last snapshot")
    assert page.page.locator("#health").inner_text() == "trouble"
    assert section.locator(".figure:visible h3").all_inner_texts() == FIGURES
    section.get_by_role("button", name="all", exact=True).click()
    assert "−7 min" in section.get_by_role("img", name="Memory").text_content()
    assert "time=all" in page.page.url
    section.get_by_role("button", name="Pause").click()
    chart = section.get_by_role("img", name="Cores busy")
    chart.focus()
    for _ in range(30):
        page.page.keyboard.press("ArrowLeft")
    told = section.locator(".told:visible").all_inner_texts()
    assert all(re.match(r"−\d+ (s|min): ", text) for text in told), told
    page.page.keyboard.press("Escape")
    assert "from " in chart.get_attribute("aria-label")


@pytest.mark.slow
def test_nobody_looks_hardly_anybody_asks(stats_server, visit):
    """While the page is paused, the server is left alone; a hidden tab asks every ten seconds, for its title."""
    page = visit(stats_server)
    page.open("Now")
    asked: list[str] = []
    page.page.on("request", lambda request: asked.append(request.url))

    def asks() -> bool:
        asked.clear()
        page.page.wait_for_timeout(1500)
        return any("api/live" in url for url in asked)

    assert asks()
    pause = page.page.get_by_role("button", name="Pause")
    pause.click()
    assert not asks()
    with page.page.expect_request("**/api/live*"):
        pause.click()
    page.page.evaluate("Object.defineProperty(document, 'hidden', {value: true, configurable: true})")
    assert not asks()


def test_a_run_that_publishes_nothing_yet(clients):
    told = clients["mixture"].ask("live")
    assert (told["missing"], told["loaders"]) == ("mixture.stats.jsonl", [])
    assert "neither a run" in clients["store"].ask("live", status=400)["message"]
