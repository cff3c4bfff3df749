"""The page in a real browser: it is there, it answers to clicks and keys, and it complains of nothing."""

import re
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest

import tokenfeed
from golden import golden_tokenizer
from plain import write_many_shards
from tiers import slow

VIEWS = {
    "store": ["Data", "Sample"],
    "run": ["Now", "Trace", "Data", "Sample"],
    "mixture": ["Now", "Trace", "Data", "Sample"],
    "stats": ["Now"],
}
SELECTIONS = {
    "store": [
        "#/data?page=20&table=halves&document=7",
        "#/sample?view=documents&index=7&as=tokens&by=halves",
        "#/sample?view=windows&length=64&index=3&as=text&token=5",
    ],
    "run": [
        "#/now?time=all&axis=step",
        "#/trace?row=60",
        "#/trace?step=33&rank=1&document=11",
        "#/trace?step=9000",
        "#/data?page=385",
        "#/sample?view=windows&length=64&index=12",
    ],
    "mixture": [
        "#/trace?step=7&row=60&document=3&of=code",
        "#/data?source=code&document=5&of=code",
        "#/sample?source=code&view=documents&index=9",
    ],
    "stats": ["#/now?time=minute"],
}
SIZES = {"desktop": (1280, 900), "tablet": (820, 1100), "phone": (390, 844)}


def shoot(page, path: Path) -> None:
    page.page.screenshot(path=path, full_page=True)
    assert path.stat().st_size > 10_000


@pytest.mark.parametrize("kind", ["mixture", *slow("store", "run", "stats")])
def test_every_view_is_there_and_reloads_to_itself(visit, servers, kind):
    """Whatever is selected is in the address: after a reload the page shows the same words."""
    page = visit(servers[kind])
    assert page.page.locator("nav a").all_inner_texts() == VIEWS[kind]
    for address in SELECTIONS[kind]:
        page.go(address)
        assert page.page.locator("section:visible").count() == 1
        assert page.page.locator("section:visible .problem:visible").count() == 0, address
        before = shown(page)
        page.reload()
        assert page.page.evaluate("location.hash") == address
        assert shown(page) == before, address


def shown(page) -> list[str]:
    """The words of the view and of the panel, and what is in its fields, without what changes by the second."""
    page.settle(400)
    page.page.evaluate(
        "document.querySelectorAll('section:not([hidden]) .words, .strips, .told').forEach(e => e.remove())"
    )
    words = page.page.locator("section:visible, #panel:visible").all_inner_texts()
    fields = page.page.evaluate(
        "[...document.querySelectorAll('section:not([hidden]) :is(input, select)')].map(e => e.value)"
    )
    return [*words, *fields, *page.page.locator("nav a[aria-current]").all_inner_texts()]


def test_one_cursor_from_step_to_document_and_back(visit, mixture_server, made):
    """From a step to a row, to a document of a source, to another step that sees it, and back by the browser."""
    run = tokenfeed.Run(made.mixture)
    page = visit(mixture_server)
    view = page.open("Trace")
    assert view.get_by_label("step", exact=True).input_value() == "11"  # the last that was run
    assert "the change of weights" in view.inner_text()  # the amendment, at its step
    assert view.get_by_role("link", name="step 6", exact=True).count() == 1
    for one in run.starts[-1].plan.ledger(run.reached):  # shares as delivered and as planned, and epochs
        told = view.locator(".ledger > div", has_text=one.source).inner_text()
        shown = re.search(r"([0-9.]+)% of samples, target ([0-9.]+)% · ([0-9.]+) epochs", told)
        expected = [100 * one.samples / run.reached, 100 * one.target / run.reached, one.epochs]
        assert [float(each) for each in shown.groups()] == pytest.approx(expected, abs=0.51)
    view.get_by_label("step", exact=True).fill("7")
    page.settle(600)
    rows = run.trace(7)
    assert view.locator("tbody tr").count() >= len(rows) == 8
    first = next(row for row in rows if row.source == "code")
    document = first.documents[0].number
    link = view.locator("tbody tr", has_text=f"{first.sample}").get_by_role("link", name=str(document), exact=True)
    link.first.click()
    page.settle()
    panel = page.page.locator("#panel")
    assert f"https://example.org/{document}" in panel.inner_text()
    seen = run.find(document, source="code", epochs=range(2))
    past = sum(not each.planned for each in seen)
    assert re.search(f"Seen {past} times?, planned [0-9]+ more", panel.inner_text())
    last = panel.locator(".seen a").last
    step = int(last.inner_text().removeprefix("step ").replace(",", ""))
    assert "planned" in panel.locator(".seen li").last.get_attribute("class")
    last.click()
    page.settle()
    assert view.locator("h2", has_text=f"Step {step:,}").count() == 1
    assert "planned: not run yet" in view.inner_text()
    page.page.go_back()
    page.settle()
    assert view.locator("h2", has_text="Step 7").count() == 1
    page.page.get_by_role("button", name="Close").click()
    page.settle()
    assert not panel.is_visible()
    page.page.locator("#main").focus()
    page.page.keyboard.press("3")  # the third view
    page.settle()
    assert page.page.locator("nav a[aria-current]").inner_text() == "Data"


@pytest.mark.parametrize("names", [("",), ('the "web"', "code")])
def test_what_is_copied_runs(names, visit, start_server, made, tmp_path):
    """In a training script of that run, whatever its sources are called. Nothing else of the page is code."""
    sources = {
        name: (tokenfeed.open(path).windows(64), 1) for name, path in zip(names, (made.web, made.code), strict=False)
    }
    data = sources[""][0] if "" in sources else tokenfeed.mix(sources)
    loader = tokenfeed.Loader(data, 4, rank=0, world_size=1, run=tmp_path / "run.jsonl")
    next(loader)
    page = visit(start_server(tmp_path / "run.jsonl"))
    page.go(f"#/trace?step=0&document=3&of={quote(names[0])}")
    (code,) = [each.get_attribute("title") for each in page.page.get_by_role("button", name="copy").all()]
    exec(code, {"tokenfeed": tokenfeed, "loader": loader})
    ((sample, number, mask),) = loader.plan.masks
    assert (sample, loader.plan.sources[number].name, list(mask.documents)) == (4, names[0], [3])
    loader.close()
    scripts = [
        each.read_text()
        for each in resources.files("tokenfeed.ui").joinpath("page").iterdir()
        if each.name.endswith(".js")
    ]
    assert sum(len(re.findall(r"(?<!const )\bcopyButton\(|clipboard\.write", each)) for each in scripts) == 2


def test_the_token_leaves_the_address(visit, store_server):
    page = visit(store_server)
    assert "token" not in page.page.url
    page.page.reload()
    page.page.wait_for_selector("html[data-ready]")
    assert page.page.locator("#name").inner_text() == "web"


def test_the_way_past_the_header(visit, store_server):
    """The link for keyboards leads to the content, and leaves the view as it is."""
    page = visit(store_server)
    page.open("Sample")
    page.page.keyboard.press("Tab")
    page.page.locator("#skip").focus()
    page.page.keyboard.press("Enter")
    assert page.page.evaluate("document.activeElement.id") == "main"
    assert page.page.locator("nav a[aria-current]").inner_text() == "Sample"


def test_a_server_that_is_gone_is_told(visit, store_server):
    page = visit(store_server)
    page.settle()  # an answer that is under way would say that the server is there
    page.page.context.set_offline(True)
    page.page.locator("nav").get_by_role("link", name="Sample", exact=True).click()
    page.page.get_by_text("The server does not answer. Is `tokenfeed serve` still running?").wait_for()
    page.problems.clear()  # the browser says that it could not connect


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", list(SIZES))
@pytest.mark.parametrize("kind", list(VIEWS))
def test_everybody_can_use_it(visit, servers, kind, size, scheme, tmp_path):
    """Axe finds nothing serious, no letter is below 11 pixels, and the page does not scroll sideways."""
    if find_spec("axe_playwright_python") is None:
        pytest.skip("NOT TESTED with axe-core: axe-playwright-python is not installed")
    axe = resources.files("axe_playwright_python").joinpath("axe.min.js").read_text()
    page = visit(servers[kind], color_scheme=scheme)
    width, height = SIZES[size]
    page.page.set_viewport_size({"width": width, "height": height})
    for address in [*(f"#/{view.lower()}" for view in VIEWS[kind]), *SELECTIONS[kind]]:
        page.go(address)
        page.settle(300)
        assert page.page.evaluate("document.documentElement.scrollWidth") <= width, address
        assert page.page.evaluate(SMALL_LETTERS) == [], address
        page.page.evaluate(axe)
        found = page.page.evaluate("axe.run()")["violations"]
        serious = [
            (one["id"], node["html"][:200], node["any"][0]["message"] if node["any"] else "")
            for one in found
            if one["impact"] in ("serious", "critical")
            for node in one["nodes"]
        ]
        assert serious == [], address
    shoot(page, tmp_path / f"{kind}-{size}-{scheme}.png")


SMALL_LETTERS = """() => {
    const found = [];
    const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walk.nextNode()) {
        const element = walk.currentNode.parentElement;
        if (!walk.currentNode.data.trim() || !element.checkVisibility({ visibilityProperty: true })) continue;
        const svg = element.closest("svg");
        const box = svg?.viewBox.baseVal?.width;
        const scale = box ? svg.getBoundingClientRect().width / box : 1;
        const size = parseFloat(getComputedStyle(element).fontSize) * (element.ownerSVGElement ? scale : 1);
        if (size < 10.99) found.push(`${size.toFixed(1)} ${element.tagName} ${walk.currentNode.data.slice(0, 40)}`);
    }
    return found;
}"""


@pytest.mark.slow
def test_light_and_dark(visit, store_server):
    def colours(page):
        return page.page.evaluate(
            "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
        )

    light, dark = visit(store_server, color_scheme="light"), visit(store_server, color_scheme="dark")
    assert colours(light) == ["rgb(246, 247, 251)", "rgb(25, 28, 39)"]
    assert colours(dark) == ["rgb(15, 17, 25)", "rgb(233, 235, 243)"]
    for link in light.page.locator("nav a").all_inner_texts():
        light.open(link)
        dark.open(link)
        assert light.outline() == dark.outline(), link


@pytest.mark.slow
def test_samples_by_keys(visit, store_server, made):
    """Tab reaches the tokens; arrows move among them, page keys among samples."""
    page = visit(store_server)
    section = page.go("#/sample?length=256")
    number = section.get_by_label("number")
    tokens = section.get_by_role("listbox")
    for _ in range(40):
        page.page.keyboard.press("Tab")
        if tokens.evaluate("element => element === document.activeElement"):
            break
    assert tokens.evaluate("element => getComputedStyle(element).outlineStyle") == "solid"
    for _ in range(3):
        page.page.keyboard.press("ArrowRight")
    assert tokens.get_attribute("aria-activedescendant") == "token-3"
    window = tokenfeed.open(made.web).windows(256)
    assert f"{window[0].tokens[3]:,}" in section.locator(".detail").inner_text()
    page.page.keyboard.press("PageDown")
    page.settle()
    assert number.input_value() == "1"
    assert tokens.evaluate("element => element === document.activeElement")
    assert tokens.locator(".token").count() == 257
    page.page.keyboard.press("PageUp")
    page.page.keyboard.press("PageUp")
    page.settle()
    assert number.input_value() == "0"


@pytest.mark.slow
def test_samples_by_mouse(visit, store_server, made):
    page = visit(store_server)
    section = page.open("Sample")
    section.get_by_label("sample is").select_option("documents")
    page.settle()
    section.get_by_label("number").fill("7")
    page.settle()
    document = tokenfeed.open(made.web).documents()[7]
    assert section.locator(".tokens .token").count() == document.tokens.size
    section.locator("#token-2").hover()
    shown = section.locator(".detail").inner_text()
    assert "https://example.org/7" in shown
    assert "<img src=x onerror=alert(1)><script>" in shown  # what is in a payload is text, whatever it looks like
    assert section.locator("img, script").count() == 0
    section.locator(".spanbar", has_text="halves").locator("rect").nth(1).hover()
    assert section.locator(".token.lit").count() == document.tokens.size // 2
    section.get_by_label("colour by").select_option("halves")
    page.settle()
    colours = section.locator(".token").evaluate_all("all => all.map(one => getComputedStyle(one).backgroundColor)")
    assert len(set(colours)) == 2  # one for each half


@pytest.mark.slow
def test_text_breaks_where_it_was_broken_and_reads_from_the_right(visit, start_server, tmp_path):
    """Newlines break lines, and Hebrew is one text from right to left, not a row of letters."""
    tokenizer = golden_tokenizer()
    tokenizer.save(tmp_path / "tokenizer")
    with tokenfeed.Writer(
        tmp_path / "store", columns={"tokens": "uint16"}, spans={"documents": "json"}, tokenizer=tokenizer.digest
    ) as writer:
        for text in ("one\ntwo\nthree", "שלום עולם, זה טקסט"):
            writer.append({"tokens": tokenizer.encode(text)}, documents={})
    page = visit(start_server(tmp_path / "store", tmp_path / "tokenizer"))
    page.go("#/sample?view=documents&index=0")
    assert page.page.locator(".tokens").inner_text() == "one\ntwo\nthree"
    assert page.page.locator(".token").first.bounding_box()["y"] < page.page.locator(".token").last.bounding_box()["y"]
    page.go("#/sample?view=documents&index=1")
    assert page.page.locator(".tokens").evaluate("one => getComputedStyle(one).direction") == "rtl"
    assert page.page.locator(".tokens").inner_text() == "שלום עולם, זה טקסט"


@pytest.mark.slow
def test_a_view_that_is_not_there_is_explained(visit, store_server):
    page = visit(store_server)
    section = page.go("#/sample?view=packed&length=256")
    assert "--length 256`" in section.get_by_role("alert").inner_text()
    assert page.problems.pop().endswith("(Bad Request)")


@pytest.mark.slow
def test_what_was_rolled_back_and_what_is_not_learned(visit, start_server, tmp_path):
    """Checkpoints and rolled-back steps are on the timeline; a step is shown as it was run each time; a row tells when
    it is seen, and which of its items are learned."""
    store, run = tmp_path / "store", tmp_path / "run.jsonl"
    columns = {"tokens": "uint16", "loss_mask": "uint8"}
    with tokenfeed.Writer(store, columns=columns, spans={"documents": "json"}, sync=False) as writer:
        for number in range(50):
            writer.append({"tokens": np.full(40, number), "loss_mask": np.arange(40) >= 30}, documents={"n": number})
    view, options = tokenfeed.open(store).windows(32), {"rank": 0, "world_size": 1, "run": run, "prefetch": 0}
    with tokenfeed.Loader(view, 2, **options) as loader:
        states = [next(loader).state for _ in range(8)]
    with tokenfeed.Loader(view, 4, **options) as loader:
        loader.load_state_dict(states[3])
        next(loader)
    page = visit(start_server(run))
    section = page.go("#/trace?step=4")
    assert section.locator(".timeline rect.back").count() == 1
    rows = section.locator("article:has(.cardhead) tbody tr")
    assert rows.count() == 4
    section.get_by_role("link", name="as start 1 ran it").click()
    page.settle()
    assert (rows.count(), section.locator(".tag").inner_text()) == (2, "rolled back")
    rows.first.get_by_role("link").first.click()
    page.settle()
    assert "Sample 8" in page.page.locator("#panel").inner_text()
    page.page.get_by_role("link", name="Token by token").click()
    page.settle()
    index = tokenfeed.Run(run).trace(4)[0].index
    mask = view.read([index]).loss_mask[0]
    assert page.page.locator(".token.unlearned").count() == 1 + int((~mask).sum())
    card = page.page.locator("article", has_text="When is this seen?")
    assert "Seen 2 times, planned 0 more" in card.inner_text()
    assert "rolled back" in card.inner_text()
    assert card.get_by_role("link").first.inner_text() == "step 4"
    page.page.get_by_label("loss mask").select_option("hidden")
    page.settle()
    assert page.page.locator(".token.unlearned").count() == 0


@pytest.mark.slow
def test_the_page_is_there_before_the_run(visit, start_server, made, tmp_path):
    run = tmp_path / "run.jsonl"
    page = visit(start_server(run, made.tokenizer))
    assert page.page.locator("nav a").all_inner_texts() == ["Now"]
    assert "There is no run.stats.jsonl yet" in page.page.locator("section:visible").inner_text()
    with tokenfeed.Loader(tokenfeed.open(made.web).windows(64), 4, rank=0, world_size=1, run=run) as loader:
        next(loader)
    page.page.locator("nav").get_by_role("link", name="Trace").wait_for()
    assert page.page.locator("nav a").all_inner_texts() == VIEWS["run"]


def test_ten_thousand_shards_are_asked_for_as_they_are_shown(visit, start_server, tmp_path):
    """What is drawn, and what comes over the wire for it, is as little as for a store of few shards."""
    store = write_many_shards(tmp_path / "many", 10_000)
    page = visit(start_server(store))
    page.settle()
    answers = []
    page.page.on("response", lambda answer: answers.append(answer))
    page.page.reload()
    page.page.wait_for_selector("#data table >> nth=1")
    page.settle()
    asked = [answer for answer in answers if "/api/" in answer.url]
    assert 0 < len(asked) <= 8
    assert sum(len(answer.body()) for answer in asked) < 16_000
    assert "10,000" in page.page.locator(".tiles").inner_text()
    documents = page.page.locator("article:has(h2:text-is('Documents'))")
    assert documents.locator("tbody tr").count() <= 40
    documents.get_by_role("button", name="Last").click()
    page.settle()
    documents.get_by_role("link").last.click()
    page.page.wait_for_selector("text=copy-09999")
    assert "Document 999,999" in page.page.locator("#panel").inner_text()
