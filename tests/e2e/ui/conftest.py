"""Something of every kind to look at, servers on free ports, and a real browser."""

import contextlib
import http.client
import json
import shutil
import threading
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import numpy as np
import pytest

import tokenfeed
from golden import golden_texts, golden_tokenizer
from tokenfeed import observe
from tokenfeed.ui import Server, open_subject
from tokenfeed.ui.server import HEADER

NAMES = ("web", "code", "run.jsonl", "run.stats.jsonl", "mixture.jsonl", "tokenizer")
NUM_DOCUMENTS = 400
LENGTH = 64
MARKUP = "<img src=x onerror=alert(1)><script>alert(2)</script>"


@dataclass(frozen=True)
class Made:
    """What the pages are about. All of it lies in `root`, whose path nobody may be told."""

    root: Path
    web: Path
    code: Path
    run: Path
    stats: Path
    mixture: Path
    tokenizer: Path


@pytest.fixture(scope="session")
def made(tmp_path_factory) -> Made:
    root = tmp_path_factory.mktemp("not-to-be-told")
    made = Made(root, *(root / name for name in NAMES))
    golden_tokenizer().save(made.tokenizer)
    texts = golden_texts()
    write_store(made.web, texts[:NUM_DOCUMENTS], root)
    write_store(made.code, texts[NUM_DOCUMENTS : NUM_DOCUMENTS + 100], root)
    web, code = (tokenfeed.open(path).windows(LENGTH) for path in (made.web, made.code))
    state = None
    for world_size, batch_size, steps in ((2, 4, 30), (4, 4, 20), (3, 2, 10)):
        state = train(web, made.run, state, world_size, batch_size, steps, made.stats)
    mixture = tokenfeed.mix({"web": (web, 0.75), "code": (code, 0.25)})
    amended = tokenfeed.Plan.of(mixture, seed=3).amend(48, weights={"web": 0.5, "code": 0.5})
    train(amended, made.mixture, None, 2, 4, 12)
    return made


def write_store(path: Path, texts, root: Path) -> None:
    """Documents with where they are from, in which the first half and the second are spans too."""
    tokenizer = golden_tokenizer()
    with tokenfeed.Writer(
        path,
        columns={"tokens": "uint16", "weight": "float32"},
        spans={"documents": "json", "halves": "utf8"},
        shard_bytes=60_000,
        tokenizer=tokenizer.digest,
        provenance={"input": str(root / "in.parquet"), "from": "https://me:password@host/x.parquet?signature=1"},
        name="part",
        sync=False,
    ) as writer:
        for number, text in enumerate(texts):
            ids = tokenizer.encode(text, prepend="<|bos|>")
            first, second = np.array_split(ids, 2)
            payload = {"url": f"https://example.org/{number}", "title": text[:40], "note": MARKUP}
            writer.append({"tokens": first, "weight": np.ones(first.size)}, documents=payload, halves="first")
            writer.extend({"tokens": second, "weight": np.zeros(second.size)}, halves="second")


def train(source, run: Path, state, world_size: int, batch_size: int, steps: int, stats: Path | None = None):
    seed = {} if isinstance(source, tokenfeed.Plan) else {"seed": 3}
    loader = tokenfeed.Loader(source, batch_size=batch_size, prefetch=0, rank=0, world_size=world_size, run=run, **seed)
    if state is not None:
        loader.load_state_dict(state)
    with contextlib.nullcontext() if stats is None else observe.publish(loader, stats):
        for _, batch in zip(range(steps), loader, strict=False):
            state = batch.state
    loader.close()
    return state


@contextlib.contextmanager
def serving(path: Path, tokenizer: Path | None = None):
    """A server of that, in a thread."""
    server = Server(open_subject(str(path), tokenizer=None if tokenizer is None else str(tokenizer)))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join(10)
        assert not thread.is_alive()


class Client:
    """Asks a server over a socket of its own, as who was let in; what it was told is kept."""

    def __init__(self, server: Server) -> None:
        self.port = server.port
        self.told: list[bytes] = []
        self.header = HEADER
        self.token = server.token

    def get(self, target: str, *, token: str | None = "", method: str = "GET", **headers: str):
        """(status, headers, body). `token` is that of who was let in, unless it is another."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        sent = dict(headers)
        given = self.token if token == "" else token
        if given is not None:
            sent[self.header] = given
        try:
            connection.request(method, target, headers=sent)
            response = connection.getresponse()
            body = response.read()
        finally:
            connection.close()
        self.told += [body, str(response.headers).encode()]
        return response.status, response.headers, body

    def ask(self, name: str, *, status: int = 200, **parameters):
        found, _, body = self.get(f"/api/{name}?{urlencode(parameters)}")
        assert found == status, body
        return json.loads(body)


@pytest.fixture(scope="session")
def store_server(made):
    with serving(made.web, made.tokenizer) as server:
        yield server


@pytest.fixture(scope="session")
def run_server(made):
    with serving(made.run, made.tokenizer) as server:
        yield server


@pytest.fixture(scope="session")
def mixture_server(made):
    with serving(made.mixture, made.tokenizer) as server:
        yield server


@pytest.fixture(scope="session")
def stats_server(made):
    with serving(made.stats) as server:
        yield server


@pytest.fixture(scope="session")
def servers(store_server, run_server, mixture_server, stats_server):
    """Every server, by what it shows."""
    return {
        "store": store_server,
        "run": run_server,
        "mixture": mixture_server,
        "stats": stats_server,
    }


@pytest.fixture(scope="session")
def clients(servers):
    """A client of every server."""
    return {name: Client(server) for name, server in servers.items()}


@pytest.fixture
def start_server():
    """Serve something until the test is over."""
    with contextlib.ExitStack() as stack:
        yield lambda path, *given: stack.enter_context(serving(path, *given))


@pytest.fixture
def start_client(start_server):
    """Ask a server of something of its own."""
    return lambda path: Client(start_server(path))


@pytest.fixture(scope="session")
def browser():
    names = ("chromium", "chromium-browser", "google-chrome")
    program = next((found for found in map(shutil.which, names) if found), None)
    if program is None:
        pytest.skip("NOT TESTED in a browser: chromium is not installed; apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        yield started
        started.close()


class Page:
    """A page in the browser. Whatever its console says, or asks of another host, is a failure."""

    def __init__(self, browser, server: Server, **options) -> None:
        self._context = browser.new_context(viewport={"width": 1280, "height": 900}, **options)
        self.page = self._context.new_page()
        self.problems: list[str] = []
        self.hosts: set[str] = set()
        self.page.on("console", lambda message: self.problems.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("request", lambda request: self.hosts.add(urlsplit(request.url).netloc))
        self.page.goto(server.address)
        self.page.wait_for_selector("html[data-ready]")

    def open(self, view: str):
        """Go to a view by its link; it, once everything in it is there."""
        self.page.locator("nav").get_by_role("link", name=view, exact=True).click()
        return self._shown(view)

    def go(self, address: str):
        """Go to a view by its address, such as `#/trace?step=3`."""
        self.page.evaluate("address => location.hash = address", address)
        self.page.wait_for_timeout(50)
        return self._shown(address[2:].partition("?")[0].capitalize())

    def reload(self) -> None:
        self.page.reload()
        self.page.wait_for_selector("html[data-ready]")
        self.settle()

    def _shown(self, view: str):
        self.page.wait_for_selector(f"section[aria-label='{view}']:not([hidden])")
        self.settle(50)
        return self.page.locator("section:visible")

    def settle(self, milliseconds: int = 200) -> None:
        """Until all that was asked for is there: questions are put off a little, in case another key is pressed."""
        self.page.wait_for_timeout(milliseconds)
        shown = "section:not([hidden])"
        self.page.wait_for_selector(f"{shown}[aria-busy], {shown} [aria-busy], #panel[aria-busy]", state="detached")

    def outline(self) -> list[str]:
        """What is on the screen without its words: elements, roles and classes, one inside the other."""
        return self.page.evaluate(
            """() => {
                const tell = (element, depth) => element.checkVisibility()
                    ? [`${" ".repeat(depth)}${element.tagName} ${element.getAttribute("role")} ${element.classList}`,
                       ...[...element.children].flatMap((child) => tell(child, depth + 1))]
                    : [];
                return tell(document.body, 0);
            }"""
        )

    def close(self) -> None:
        self._context.close()


@pytest.fixture
def visit(browser):
    """Open a page; when the test is over, it must not have complained."""
    opened: list[Page] = []

    def open_page(server: Server, **options) -> Page:
        opened.append(Page(browser, server, **options))
        return opened[-1]

    yield open_page
    for page in opened:
        page.close()
        assert page.problems == []
        assert len(page.hosts) == 1
