"""The section Live in a real browser, beside real loaders in processes of their own."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from tokenfeed.loader.delivery import Stats
from tokenfeed.observe.snapshots import Snapshot
from tokenfeed.ui.live import Live

# Trains until it is killed. Making batches takes long while there is a file called "slow".
SCRIPT = """
import os, sys, time, tokenfeed
from tokenfeed import observe

store, run, slow = sys.argv[1:]

def collate(batch):
    if os.path.exists(slow):
        time.sleep(0.05)
    return batch

loader = tokenfeed.Loader(
    tokenfeed.open(store).windows(64), 4, rank=0, world_size=1, prefetch=2, collate=collate, run=run
)
observe.publish(loader, run.removesuffix(".jsonl") + ".stats.jsonl", every=0.2)
for batch in loader:
    time.sleep(0.005)
"""
FIGURES = ["Tokens a second", "Waiting for data", "Batches ready", "Cores busy", "Memory"]


@pytest.fixture
def training(made, tmp_path):
    """(the process, its run file, the file that makes it slow)."""
    run, slow = tmp_path / "run.jsonl", tmp_path / "slow"
    with subprocess.Popen([sys.executable, "-c", SCRIPT, made.web, run, slow]) as process:
        deadline = time.monotonic() + 60
        while not run.exists() or not run.with_name("run.stats.jsonl").exists():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield process, run, slow
        process.kill()


@pytest.fixture
def training_server(training, start_server):
    return start_server(training[1])


def until(page, text: str) -> None:
    """Wait for the words."""
    page.page.locator("#live .words", has_text=text).wait_for(timeout=20_000)


def delivered(page) -> int:
    told = page.page.locator(".tile", has_text="delivered").locator("small").inner_text()
    return int(re.search("in ([0-9,]+) batches", told)[1].replace(",", ""))


@pytest.mark.slow
def test_a_loader_is_seen_to_run_to_wait_and_to_die(training, training_server, visit):
    process, _, slow = training
    page = visit(training_server)
    section = page.open("Live")
    section.locator(".state", has_text="running").wait_for()
    counts = [delivered(page)]
    while len(set(counts)) < 3:
        page.page.wait_for_timeout(100)
        counts.append(delivered(page))
    assert counts == sorted(counts)
    shown = section.locator(".figure:visible h3").all_inner_texts()
    assert shown[:5] == FIGURES  # and those of GPUs, where there are any
    assert "collate" not in section.locator(".words").inner_text()
    slow.touch()
    until(page, "collate is the bottleneck")
    assert "warm" in section.locator(".tile", has_text="waits for data").locator("strong").get_attribute("class")
    label = section.get_by_role("img", name="Waiting for data").get_attribute("aria-label")
    assert "%" in label
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    until(page, f"Process {process.pid} no longer exists")
    assert section.locator(".state").all_inner_texts() == ["killed"]
    assert section.locator(".tile", has_text="tokens a second").locator("strong").inner_text() == "–"


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


def lines_of(section, title: str):
    return section.locator(".figure", has=section.page.get_by_role("heading", name=title)).locator("path.line")


def test_ranks_together_and_each_by_itself(ranks_server, visit):
    page = visit(ranks_server)
    section = page.open("Live")
    section.locator(".state").nth(2).wait_for()
    assert section.locator(".state").all_inner_texts() == ["running", "ended", "silent"]
    assert "1 ended earlier" in section.inner_text()
    words = section.locator(".words p").all_inner_texts()
    assert words[0].startswith("Rank 2: Process 7 wrote its last snapshot")
    assert any(text.startswith("Rank 0: Nothing to gain") for text in words)
    assert any(text.startswith("Rank 1: The loader ended") for text in words)
    assert "from 1,000 to 3,000" in section.get_by_role("img", name="Tokens a second").get_attribute("aria-label")
    assert lines_of(section, "Tokens a second").count() == 1
    choice = section.get_by_role("combobox", name="ranks")
    choice.select_option("each rank")
    assert lines_of(section, "Tokens a second").count() == 3
    legend = section.locator(".legend span").all_inner_texts()
    assert [text.strip() for text in legend] == ["rank 0", "rank 1", "rank 2"]
    choice.select_option("rank 2")
    assert section.locator(".words p").count() == 1
    assert "mean 20%" in section.get_by_role("img", name="Waiting for data").get_attribute("aria-label")
    choice.select_option("all ranks")
    section.get_by_role("button", name="all", exact=True).click()
    assert "−7 min" in section.get_by_role("img", name="Memory").text_content()
    section.get_by_role("button", name="ten minutes").click()
    assert "−10 min" in section.get_by_role("img", name="Memory").text_content()
    assert section.get_by_role("button", name="ten minutes").get_attribute("aria-pressed") == "true"


@pytest.mark.slow
def test_charts_by_keys_in_light_and_dark(ranks_server, visit, tmp_path):
    light, dark = (visit(ranks_server, color_scheme=scheme) for scheme in ("light", "dark"))
    colours = {}
    for name, page in (("light", light), ("dark", dark)):
        section = page.open("Live")
        section.get_by_role("button", name="Pause").click()
        colours[name] = lines_of(section, "Memory").evaluate("element => getComputedStyle(element).stroke")
        chart = section.get_by_role("img", name="Cores busy")
        for _ in range(20):
            page.page.keyboard.press("Tab")
            if chart.evaluate("element => element === document.activeElement"):
                break
        for _ in range(3):
            page.page.keyboard.press("ArrowLeft")
        assert chart.get_attribute("aria-label").startswith("Cores busy, 2 s before: ")
        told = section.locator(".told:visible").all_inner_texts()
        assert all(text.startswith("2 s before: ") for text in told), told
        page.page.keyboard.press("Escape")
        assert "from " in chart.get_attribute("aria-label")
        page.page.screenshot(path=tmp_path / f"{name}.png", full_page=True)
        assert (tmp_path / f"{name}.png").stat().st_size > 20_000
    assert colours == {"light": "rgb(79, 70, 229)", "dark": "rgb(143, 139, 255)"}
    assert light.outline() == dark.outline()


@pytest.mark.slow
def test_gpus_where_nvml_has_them(ranks_server, visit, monkeypatch):
    """NVML's place is taken by a module of its shape: there is no GPU where this runs."""
    nvml = SimpleNamespace(
        NVMLError=RuntimeError,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetName=lambda index: f"GPU {index}",
        nvmlDeviceGetMemoryInfo=lambda index: SimpleNamespace(used=(index + 1) * 10**9, total=80 * 10**9),
        nvmlDeviceGetUtilizationRates=lambda index: SimpleNamespace(gpu=37 + index),
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    section = visit(ranks_server).open("Live")
    assert section.locator(".figure:visible h3").all_inner_texts() == [*FIGURES, "GPU busy", "GPU memory"]
    lines_of(section, "GPU busy").nth(1).wait_for(state="attached")  # in the first whole second
    assert lines_of(section, "GPU busy").count() == 2
    assert "37%, 38%" in section.get_by_role("img", name="GPU busy").get_attribute("aria-label")
    assert "1 GB, 2 GB" in section.get_by_role("img", name="GPU memory").get_attribute("aria-label")
    monkeypatch.setitem(sys.modules, "pynvml", None)  # as if it were not installed
    section.get_by_text("No GPUs: nvidia-ml-py is not installed.").wait_for()
    assert section.locator(".figure:visible h3").all_inner_texts() == FIGURES


@pytest.mark.slow
def test_nobody_looks_nobody_asks(stats_server, visit):
    """While the page is paused, another section is shown, or the tab is hidden, the server is left alone."""
    page = visit(stats_server)
    page.open("Live")
    asked: list[str] = []
    page.page.on("request", lambda request: asked.append(request.url))

    def asks() -> bool:
        asked.clear()
        page.page.wait_for_timeout(1100)
        return any("api/live" in url for url in asked)

    assert asks()
    pause = page.page.get_by_role("button", name="Pause")
    pause.click()
    assert not asks()
    with page.page.expect_request("**/api/live*"):
        pause.click()
    page.page.evaluate("Object.defineProperty(document, 'hidden', {value: true, configurable: true})")
    assert not asks()
    with page.page.expect_request("**/api/live*"):
        page.page.evaluate("delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))")
    page.open("Order")
    assert not asks()


def test_only_what_is_new_is_sent(tmp_path):
    path = tmp_path / "ranks.stats.jsonl"
    now = time.time()
    write_ranks(path, now)
    live = Live(path)
    told = live.tell(0)
    assert [len(one["points"]) for one in told["loaders"]] == [1, 301, 295, 295]
    assert [one["is_past"] for one in told["loaders"]] == [True, False, False, False]
    assert told["now"] >= now
    again = live.tell(told["number"])
    assert [len(one["points"]) for one in again["loaders"]] == [0, 0, 0, 0]
    stats = Stats(302, 302, 0, 302.0, 0.0, 0.0, 4, items=302_000, threads=1, prefetch=8)
    with path.open("a") as file:
        file.write(Snapshot(now + 2, "host0", 7, 0, 0, 3, 1.0, 8, 453.0, 10**9, False, stats).to_json() + "\n")
    again = live.tell(told["number"])
    assert [one["points"] for one in again["loaders"] if one["points"]] == [
        [[round(now + 2, 3), 302_000, 302.0, 0.0, 4, 453.0, 10**9]]
    ]
    assert len(json.dumps(again)) < 4000


def test_a_run_that_publishes_nothing_yet(clients):
    told = clients["mixture"].ask("live")
    assert (told["missing"], told["loaders"]) == ("mixture.stats.jsonl", [])
    assert "neither a run" in clients["store"].ask("live", status=400)["message"]
