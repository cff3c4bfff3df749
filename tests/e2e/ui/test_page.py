"""The page in a real browser: it is there, it answers to clicks and keys, and it complains of nothing."""

import re
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tokenfeed
from tiers import slow
from tokenfeed.format.manifest import Manifest
from tokenfeed.ui import Server, open_subject

SECTIONS = {
    "store": {"Overview", "Samples", "Packing", "Order"},
    "run": {"Run", "Live", "Overview", "Samples", "Packing", "Order"},
    "mixture": {"Run", "Live", "Order"},
    "stats": {"Live", "Order"},
    "text": {"Text to batch", "Order"},
}
CARDS = {
    "Overview": ["Columns", "Span tables", "Lengths of documents", "Shards", "Origin"],
    "Samples": ["<|bos|>", "Where it lies", "Its bytes"],
    "Packing": ["Packing"],
    "Order": ["A permutation", "One index, round by round", "Steps, ranks, epochs"],
    "Text to batch": ["1 · Text", "2 · Tokens, rows, batches, ranks"],
}
LIVE_CARDS = {"run": ["Over time", "Ranks"], "stats": ["Over time", "Ranks"], "mixture": []}
RUN_CARDS = ["History", "When is a document seen?", "What did a step train on?"]


def shoot(page, path: Path) -> None:
    page.page.screenshot(path=path, full_page=True)
    assert path.stat().st_size > 10_000


@pytest.mark.parametrize("kind", ["run", *slow("store", "mixture", "stats", "text")])
def test_every_section_is_there(visit, servers, tmp_path, kind):
    page = visit(servers[kind])
    links = page.page.locator("nav a").all_inner_texts()
    assert set(links) == SECTIONS[kind]
    for link in links:
        section = page.open(link)
        titles = section.locator("h2:visible").all_inner_texts()
        expected = LIVE_CARDS[kind] if link == "Live" else CARDS.get(link, RUN_CARDS)
        assert set(expected) <= set(titles), link
        assert section.locator(".problem:visible").count() == 0
        assert page.page.locator("section:visible").count() == 1
        shoot(page, tmp_path / f"{kind}-{link}.png")


def test_the_token_leaves_the_address(visit, store_server):
    page = visit(store_server)
    assert "token" not in page.page.url
    page.page.reload()
    page.page.wait_for_selector("html[data-ready]")
    assert page.page.locator("#name").inner_text() == "web"


@pytest.mark.slow
def test_light_and_dark(visit, store_server, tmp_path):
    def colours(page):
        return page.page.evaluate(
            "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
        )

    light, dark = visit(store_server, color_scheme="light"), visit(store_server, color_scheme="dark")
    assert colours(light) == ["rgb(246, 247, 251)", "rgb(25, 28, 39)"]
    assert colours(dark) == ["rgb(15, 17, 25)", "rgb(233, 235, 243)"]
    shoot(dark, tmp_path / "dark.png")
    for link in light.page.locator("nav a").all_inner_texts():
        light.open(link)
        dark.open(link)
        assert light.outline() == dark.outline(), link
    toggle = light.page.get_by_role("button", name="Light or dark")
    toggle.click()
    assert colours(light) == colours(dark)
    light.page.reload()
    light.page.wait_for_selector("html[data-ready]")
    assert colours(light) == colours(dark)
    toggle.click()
    assert colours(light) == ["rgb(246, 247, 251)", "rgb(25, 28, 39)"]


def test_samples_by_keys(visit, store_server, made):
    """Tab reaches the tokens; arrows move among them, page keys among samples, Enter reads the bytes."""
    page = visit(store_server)
    section = page.open("Samples")
    number = section.get_by_label("number")
    tokens = section.get_by_role("listbox")
    for _ in range(40):
        page.page.keyboard.press("Tab")
        if tokens.evaluate("element => element === document.activeElement"):
            break
    assert tokens.evaluate("element => element === document.activeElement")
    assert tokens.evaluate("element => getComputedStyle(element).outlineStyle") == "solid"
    for _ in range(3):
        page.page.keyboard.press("ArrowRight")
    assert tokens.get_attribute("aria-activedescendant") == "token-3"
    window = tokenfeed.open(made.web).windows(256)
    assert f"{window[0].tokens[3]:,}" in section.locator(".detail").inner_text()
    page.page.keyboard.press("Enter")
    page.settle()
    cells = section.locator(".file", has_text="tokens.npy").locator(".cell span").all_inner_texts()
    assert [int(cell) for cell in cells] == window[0].tokens[3 : 3 + len(cells)].tolist()
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
def test_samples_by_mouse(visit, store_server, made, tmp_path):
    page = visit(store_server)
    section = page.open("Samples")
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
    first = section.locator(".file", has_text="tokens.npy").locator(".cell").first
    first.hover()
    lit = section.locator(".file", has=page.page.locator(".cell.lit")).locator("code").all_inner_texts()
    assert lit[0] == "tokens.npy"
    assert {"weight.npy", "documents.starts.npy", "halves.starts.npy"} <= set(lit)
    section.locator(".file", has_text="documents.payload.bin").locator(".cell").first.hover()
    lit = section.locator(".file", has=page.page.locator(".cell.lit")).locator("code").all_inner_texts()
    assert {"documents.starts.npy", "documents.offsets.npy", "documents.payload.bin"} <= set(lit)
    assert "halves.payload.bin" not in lit
    shoot(page, tmp_path / "document.png")


@pytest.mark.slow
def test_a_view_that_is_not_there_is_explained(visit, store_server):
    page = visit(store_server)
    section = page.open("Samples")
    section.get_by_label("sample is").select_option("packed")
    page.settle()
    assert "--length 256`" in section.get_by_role("alert").inner_text()
    assert page.problems.pop().endswith("(Bad Request)")


@pytest.mark.slow
def test_order_by_hand(visit, store_server):
    page = visit(store_server)
    section = page.open("Order")
    section.get_by_label("n", exact=True).fill("50000")
    section.get_by_label("seed").first.fill("12")
    section.get_by_label("position", exact=True).fill("4321")
    page.settle()
    assert section.locator("#walk-value").inner_text() == str(tokenfeed.Permutation(50_000, seed=12)[4321])
    assert section.locator("table tr").count() > 12
    section.locator("canvas").focus()
    page.page.keyboard.press("ArrowRight")
    page.settle()
    position = int(section.get_by_label("position", exact=True).input_value())
    assert position > 4321
    assert section.locator("#walk-value").inner_text() == str(tokenfeed.Permutation(50_000, seed=12)[position])
    section.get_by_role("slider", name="ranks").fill("5")
    page.settle()
    picture = section.get_by_role("img", name=re.compile("each rank"))
    assert picture.locator("rect").count() == 5 * 3 * 6
    assert "rank 4" in picture.text_content()


@pytest.mark.slow
def test_packing_and_text_by_hand(visit, store_server, text_server):
    page = visit(store_server)
    section = page.open("Packing")
    section.get_by_label("row length").fill("300")
    page.settle()
    assert "300 + 1 items" in section.inner_text()
    page = visit(text_server)
    section = page.open("Text to batch")
    section.get_by_label("ranks").fill("3")
    page.settle()
    assert section.locator(".rank h3").all_inner_texts() == ["rank 0", "rank 1", "rank 2"]
    section.locator(".rank").nth(2).locator("button").first.click()
    assert "rank 2" in section.locator(".reading h3").inner_text()


@pytest.mark.slow
def test_a_run_by_hand(visit, run_server, made):
    page = visit(run_server)
    section = page.open("Run")
    section.get_by_label("document", exact=True).fill("11")
    section.get_by_label("epochs").fill("3")
    section.get_by_label("step", exact=True).fill("33")
    page.settle()
    seen = tokenfeed.Run(made.run).find(11, epochs=range(3))
    assert f"In {len(seen)} rows." in section.inner_text()
    rows = section.get_by_role("region", name="Step 33").locator("tbody tr")
    assert rows.count() == 16
    first = tokenfeed.Run(made.run).trace(33)[0]
    rows.first.get_by_role("link").click()
    page.settle()
    shown = page.page.locator("section:visible .detail").inner_text()
    assert f"{tokenfeed.open(made.web).windows(64)[first.index].tokens[0]:,}" in shown
    assert page.page.get_by_label("number").input_value() == str(first.index)


@pytest.mark.slow
def test_a_document_is_looked_for(visit, run_server, mixture_server, store_server, made):
    """By what its payload says, in capitals or not; then it is seen when it is trained on, or shown."""
    page = visit(run_server)
    section = page.open("Run")
    section.get_by_label("search for").fill("EXAMPLE.ORG/39")
    found = section.get_by_role("group", name="Documents found").get_by_role("button")
    found.nth(10).wait_for()
    assert found.count() == 11  # 39 and 390 to 399
    assert "400 of 400 documents" in section.inner_text()
    found.nth(3).click()
    page.settle()
    assert section.get_by_label("document", exact=True).input_value() == "392"
    seen = tokenfeed.Run(made.run).find(392)
    assert f"In {len(seen)} row" in section.inner_text()
    section.get_by_label("search for").fill("nothing of the kind")
    section.get_by_text("Not found.").wait_for()

    page = visit(mixture_server)
    section = page.open("Run")
    section.get_by_label("search for").fill("example.org/7")
    page.settle(500)
    section.get_by_label("source").select_option("code")
    section.get_by_text("100 of 100 documents").wait_for()

    page = visit(store_server)
    section = page.open("Samples")
    section.get_by_label("search for").fill("example.org/123")
    section.get_by_role("button", name="document 123").click()
    page.settle()
    assert section.get_by_label("number").input_value() == "123"
    assert section.locator(".tokens .token").count() == tokenfeed.open(made.web).documents()[123].tokens.size


@pytest.mark.slow
def test_it_fits_a_telephone(visit, run_server, tmp_path):
    page = visit(run_server, is_mobile=True)
    page.page.set_viewport_size({"width": 390, "height": 800})
    for link in page.page.locator("nav a").all_inner_texts():
        page.open(link)
        assert page.page.evaluate("document.documentElement.scrollWidth") <= 390, link
    shoot(page, tmp_path / "narrow.png")


def make_many_shards(store):
    """10,000 shards, each the same folder under another name."""
    with tokenfeed.Writer(store, columns={"tokens": "uint16"}, spans={"documents": "json"}, sync=False) as writer:
        for number in range(100):
            writer.append({"tokens": np.arange(7 * number)}, documents=number)
    manifest = Manifest.from_json((store / "manifest.json").read_bytes(), "manifest.json")
    (entry,) = manifest.shards
    names = [f"copy-{number:05}" for number in range(10_000)]
    for name in names:
        (store / name).symlink_to(entry.name)
    shards = tuple(replace(entry, name=name) for name in names)
    (store / "manifest.json").write_text(replace(manifest, shards=shards).to_json())
    return store


def test_ten_thousand_shards_are_asked_for_as_they_are_shown(visit, tmp_path):
    """What is drawn, and what comes over the wire for it, is as little as for a store of few shards."""
    store = make_many_shards(tmp_path / "many")
    server = Server(open_subject(str(store)))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        page = visit(server)
        page.settle()
        answers = []
        page.page.on("response", lambda answer: answers.append(answer))
        page.page.reload()
        page.page.wait_for_selector("article:has-text('Shards') tbody tr")
        page.page.wait_for_selector(".bar")
        page.settle()
        asked = [answer for answer in answers if "/api/" in answer.url]
        assert 0 < len(asked) <= 6
        assert sum(len(answer.body()) for answer in asked) < 10_000
        assert "10,000" in page.page.locator(".tiles").inner_text()
        assert page.page.locator("article:has-text('Shards') tbody tr").count() <= 40
        page.page.get_by_role("button", name="Last").click()
        page.page.wait_for_selector("text=copy-09999")
    finally:
        server.shutdown()
        thread.join(10)
