"""What the documentation shows is run as it stands, page by page; its links lead somewhere, and the site builds."""

import contextlib
import http.server
import importlib.util
import multiprocessing
import os
import shutil
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest
from playwright.sync_api import sync_playwright

import pages
import torchrun
from servers import s3_server

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
BIN = Path(sys.executable).parent
RECORDS = ("decisions", "benchmarks")
PAGES = sorted(page for page in DOCS.rglob("*.md") if page.relative_to(DOCS).parts[0] not in RECORDS)


def name_of(page):
    return page.relative_to(DOCS).with_suffix("").as_posix()


def run(page, folder, **environment):
    """(exit status, what was printed), in a fork of a process that has everything imported: that saves 4 s a page."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "RAY_"))}
    settings = {"PATH": f"{BIN}:{os.environ['PATH']}", "COLUMNS": "160", "RAY_USAGE_STATS_ENABLED": "0"}
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(torchrun.PRELOADED)
    output = folder.parent / f"{folder.name}.txt"
    what = str(page), str(folder), {**clean, **settings, **environment}, str(output)
    process = context.Process(target=pages.run_in, args=what)
    process.start()
    process.join(280)
    if process.exitcode is None:
        process.kill()
        process.join()
    return process.exitcode, output.read_text()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_page_runs(page, tmp_path):
    """In an empty folder. Where a page speaks of S3, there is a real server with an empty bucket called `bucket`."""
    folder = tmp_path / "here"
    folder.mkdir()
    with contextlib.ExitStack() as stack:
        environment = {}
        if any("s3://" in step.code for step in pages.parse(page) if not step.needs):
            environment = stack.enter_context(s3_server()).environment()
        status, printed = run(page, folder, **environment)
    assert status == 0, printed[-5000:]


def test_nearly_everything_runs():
    """Blocks that need what a test does not have are named, and are few."""
    steps = [(page, step) for page in PAGES for step in pages.parse(page)]
    left_out = [(page, step) for page, step in steps if step.needs]
    for page, step in left_out:
        print(f"{name_of(page)}, line {step.line}, {step.needs}: {step.code.splitlines()[0]}")
    assert len(left_out) <= 0.15 * len(steps), f"{len(left_out)} of {len(steps)} steps are not run"


def test_what_fails_is_told(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# Page\n\n```python\nx = 1\n```\n\n```python\nassert x == 2\n```\n")
    status, printed = run(page, tmp_path)
    assert status == 1
    assert "line 8" in printed
    assert "assert x == 2" in printed
    page.write_text("```sh\npip install nothing\ntokenfeed --version\ntokenfeed \\\n  nonsense\n```\n")
    status, printed = run(page, tmp_path)
    assert status == 1
    assert "line 4: exit status 2" in printed
    assert "$ tokenfeed --version" in printed


@pytest.mark.parametrize(
    "text",
    ["```pyton\n```\n", "```sh needs=coffee\n```\n", "```python\nx = 1\n", "```sh needs=gpu needs=network\n```\n"],
)
def test_what_nobody_understands_is_an_error(text, tmp_path):
    (tmp_path / "page.md").write_text(text)
    with pytest.raises(pages.PageError):
        pages.parse(tmp_path / "page.md")


def test_blocks_are_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "```json\n{}\n```\n\n1. One\n\n   ```python\n   x = 1\n   ```\n\n```sh needs=gpu\ntokenfeed a\n```\n"
    )
    assert pages.parse(page) == [
        pages.Step("python", 8, "x = 1\n"),
        pages.Step("sh", 12, "tokenfeed a", "needs=gpu"),
    ]


def test_the_reference_has_every_public_name_and_reads_in_a_checkout():
    """Its tables are what the source says: after a change, run `python docs/site.py`."""
    spec = importlib.util.spec_from_file_location("docs_site", DOCS / "site.py")
    site = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(site)
    pages = {page.stem: page.read_text() for page in site.REFERENCE.glob("*.md")}
    for stem, page in pages.items():
        assert site.write_tables(page) == page, f"{stem}.md is not what the source says: run python docs/site.py"
        assert ":::" not in page
    told = {name for page in pages.values() for name in site.NAME.findall(page)}
    packages = [f"tokenfeed{part}" for part in ("", ".text", ".preparation", ".torch", ".jax", ".observe")]
    missing = {name for package in packages for name in site.list_names(package)} - told
    missing = {name for name in missing if f"tokenfeed.{name.rpartition('.')[2]}" not in told}  # it is told there
    assert missing == {"tokenfeed.__version__", "tokenfeed.errors"}
    assert {f"tokenfeed {command}" for command in site.COMMANDS} <= told
    errors = [name.removeprefix("tokenfeed.errors.") for name in site.list_names("tokenfeed.errors")]
    assert [name for name in errors if name not in pages["errors"]] == []


def test_the_site_builds(tmp_path):
    """Strictly: a link that leads nowhere, or a page that is not in the navigation, is an error. Without a network."""
    done = subprocess.run(
        [BIN / "mkdocs", "build", "--strict", "--quiet", "--site-dir", tmp_path / "site"],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not done.stderr, done.stderr
    for page in (tmp_path / "site").rglob("*.html"):
        text = page.read_text()
        assert 'src="http' not in text, page
        assert '<link rel="stylesheet" href="http' not in text, page


QUESTIONS = {
    "shuffle": "locality",
    "evaluate": "guides/evaluate",
    "resume": "guides/resume-elsewhere",
    "own tokenizer": "guides/own-tokenizer",
    "memory": "guides/memory",
    "wandb": "observability",
    "slurm": "guides/slurm",
    "S3 keys": "guides/object-stores",
    "end of an epoch": "guides/epoch-end",
    "add data": "guides/change-a-run",
    "variable length": "guides/balanced-steps",
    "validation": "guides/evaluate",
    "chat": "guides/chat-finetuning",
    "packing mask": "guides/pack-and-mask",
    "loss spike": "guides/loss-spike",
}
"""What people ask in their first hour, in their words, and the page that answers."""


class Site(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.mark.slow
def test_a_search_finds_the_page_first(tmp_path):
    """In a real browser, as a reader does it."""
    program = shutil.which("chromium")
    if program is None:
        pytest.fail("chromium is missing: apt-get install chromium")
    subprocess.run([BIN / "mkdocs", "build", "--quiet", "--site-dir", tmp_path], cwd=ROOT, check=True, timeout=280)
    handler = partial(Site, directory=tmp_path)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server, sync_playwright() as playwright:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        first = {}
        for question in QUESTIONS:
            page = browser.new_page()
            page.goto(f"http://127.0.0.1:{server.server_port}/index.html?q={quote(question)}")
            link = page.wait_for_selector(".md-search-result__item > a", state="attached", timeout=60_000)
            first[question] = urlsplit(link.get_attribute("href")).path.strip("/").removesuffix(".html")
            page.close()
        browser.close()
        server.shutdown()
    assert first == QUESTIONS
