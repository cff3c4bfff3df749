"""Pictures of the page, for README and docs: of a real run of examples/demo.py, in the Chromium that is installed.

.venv/bin/python bench/screenshots.py     # docs/images/*.png, in two minutes
"""

import argparse
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

import tokenfeed
from tokenfeed.observe import read_snapshots
from tokenfeed.ui import Server, open_subject

IMAGES = Path(__file__).parents[1] / "docs" / "images"
SIZE = {"width": 1200, "height": 860}
MOST_BYTES = 250_000
DEMO = Path(__file__).parents[1] / "examples" / "demo.py"


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    while not condition():
        assert process.poll() is None, "the demo has ended"
        time.sleep(0.2)


def has_run_for(stats: Path, seconds: float) -> bool:
    if not stats.exists():
        return False
    snapshots = read_snapshots(stats)
    return snapshots[-1].time - snapshots[0].time >= seconds


def shoot(page: Page, server: Server, address: str, name: str) -> None:
    page.goto(f"{server.address}{address}")
    page.reload()  # a change of the hash alone would keep the page
    page.wait_for_selector("html[data-ready]")
    page.wait_for_timeout(2500)
    picture = shrink(page.screenshot())
    assert len(picture) < MOST_BYTES, f"{name} has {len(picture):,} bytes"
    (IMAGES / name).write_bytes(picture)
    print(f"{name}: {len(picture):,} bytes")


def choose_sample(folder: Path) -> int:
    """The window that touches most documents."""
    windows = tokenfeed.open(folder / "store", split="train").windows(256)
    return max(range(len(windows)), key=lambda number: len(windows[number].spans["documents"]))


def shrink(png: bytes) -> bytes:
    """The same picture, compressed as well as zlib can, and without what is not picture."""
    chunks = list(read_chunks(png))
    data = zlib.decompress(b"".join(body for kind, body in chunks if kind == b"IDAT"))
    kept = [(kind, body) for kind, body in chunks if kind in (b"IHDR", b"PLTE", b"tRNS")]
    packed = zlib.compress(data, 9)
    written = [*kept, (b"IDAT", packed), (b"IEND", b"")]
    return png[:8] + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in written
    )


def read_chunks(png: bytes) -> Iterator[tuple[bytes, bytes]]:
    place = 8
    while place < len(png):
        (length,) = struct.unpack_from(">I", png, place)
        yield png[place + 4 : place + 8], png[place + 8 : place + 8 + length]
        place += length + 12


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=150.0, help="that the model is trained for")
    seconds = parser.parse_args().seconds
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as root, sync_playwright() as playwright:
        folder = Path(root) / "demo"
        command = [sys.executable, DEMO, "--out", folder, "--seconds", str(seconds)]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        light, dark = (
            browser.new_context(viewport=SIZE, color_scheme=scheme).new_page() for scheme in ("light", "dark")
        )
        stats = folder / "run.stats.jsonl"
        wait_until(lambda: has_run_for(stats, 1.0), process)
        server = Server(open_subject(str(folder / "run.jsonl"), tokenizer=str(folder / "tokenizer")))
        thread = threading.Thread(target=server.run)
        thread.start()
        try:
            wait_until(lambda: has_run_for(stats, min(65.0, seconds / 4)), process)
            shoot(light, server, "#/now", "now.png")
            run = tokenfeed.Run(folder / "run.jsonl")
            step = run.legs[-1].start.step + run.reached // run.samples(0)[-1] // 2
            document = run.trace(step)[0].documents[0].number
            trace = f"#/trace?step={step}&document={document}"
            shoot(light, server, trace, "page-light.png")
            shoot(dark, server, trace, "page-dark.png")
            shoot(light, server, f"#/sample?index={choose_sample(folder)}&token=100&as=tokens", "sample.png")
            shoot(light, server, "#/data?page=100", "data.png")
        finally:
            server.shutdown()
            thread.join()
            process.wait()


if __name__ == "__main__":
    main()
