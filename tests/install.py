"""`make install-check`: the wheel and the source archive, each by itself in a clean environment, do what is promised.

`python tests/install.py build/dist` builds both there with this Python. Plain `tokenfeed`, with what it declares and
nothing else, opens a store, trains from it, goes on from a checkpoint, prepares text, runs the command line and
the page.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
MOST_BYTES = 1_000_000
TRAINS = """
import numpy as np, tokenfeed
with tokenfeed.Writer("store", columns={"tokens": "uint16"}, spans={"documents": "json"}) as writer:
    for number in range(200):
        writer.append({"tokens": np.arange(number, number + 50)}, documents={"number": number})
loader = tokenfeed.Loader(tokenfeed.open("store").windows(16), 8)
weights = np.zeros(300)
for step in range(10):
    inputs, targets = next(loader)
    np.add.at(weights, inputs, 0.1 * (targets - inputs - weights[inputs]))
state = loader.state_dict()
expected = next(loader).samples.tolist()
loader = tokenfeed.Loader(tokenfeed.open("store").windows(16), 8)
loader.load_state_dict(state)
assert next(loader).samples.tolist() == expected == list(range(80, 88))
assert weights.max() > 0.3, weights
try:
    tokenfeed.open("s3://bucket/store")
except tokenfeed.errors.DependencyError as error:
    assert "tokenfeed[remote]" in str(error), error
else:
    raise AssertionError("obstore is here, in an environment without extras")
"""

SHOWS = """
import json, threading
from urllib.request import Request, urlopen
import tokenfeed
from tokenfeed import observe
from tokenfeed.text.tokenizer.vocabulary import Vocabulary, find_pattern
from tokenfeed.ui.server import HEADER, Server
from tokenfeed.ui.subject import open_subject
with open("text.jsonl", "w") as file:
    file.writelines(json.dumps({"text": f"Document {number}. " * 20}) + "\\n" for number in range(100))
ranks = {bytes([byte]): byte for byte in range(256)}
tokenizer = tokenfeed.Tokenizer(Vocabulary(ranks, find_pattern("gpt2"), {"<|bos|>": 256}, "<|bos|>"))
tokenizer.save("tokenizer")
tokenfeed.prepare("text.jsonl", "prepared", tokenizer=tokenizer, val=0.1, workers=0)
windows = tokenfeed.open("prepared", split="train").windows(64)
with tokenfeed.Loader(windows, 4, run="run.jsonl") as loader, observe.publish(loader, "run.stats.jsonl"):
    for _ in range(20):
        next(loader)
server = Server(open_subject("run.jsonl", tokenizer="tokenizer"))
threading.Thread(target=server.run, daemon=True).start()
asked = Request(f"http://127.0.0.1:{server.port}/api/live", headers={HEADER: server.token})
(told,) = json.load(urlopen(asked))["loaders"]
server.shutdown()
assert told["batches"] == 20, told
"""


def run(*words: object, **more: object) -> str:
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run([str(word) for word in words], env=clean, capture_output=True, text=True, check=False, **more)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    return done.stdout


def environment(folder: Path) -> Path:
    venv.create(folder, with_pip=True)
    return folder / "bin"


def check(package: Path, folder: Path) -> None:
    programs = environment(folder / "environment")
    run(programs / "python", "-m", "pip", "install", "--quiet", package)
    run(programs / "python", "-c", TRAINS, cwd=folder)
    told = run(programs / "tokenfeed", "doctor", cwd=folder)
    for extra in ("text", "remote", "ui"):
        assert f"pip install 'tokenfeed[{extra}]'" in " ".join(told.split()), told
    run(programs / "tokenfeed", "inspect", "store", cwd=folder)
    run(programs / "python", "-c", SHOWS, cwd=folder)
    print(f"{package.name}: {package.stat().st_size:,} bytes, works on Python {sys.version.split()[0]}")


def main(out: Path) -> None:
    shutil.rmtree(out, ignore_errors=True)
    with tempfile.TemporaryDirectory() as temporary:
        programs = environment(Path(temporary, "build"))
        run(programs / "python", "-m", "pip", "install", "--quiet", "build")
        run(programs / "python", "-m", "build", "--outdir", out, ROOT)
    (wheel,), (archive,) = out.glob("*.whl"), out.glob("*.tar.gz")
    if wheel.stat().st_size > MOST_BYTES:
        sys.exit(f"{wheel.name} has {wheel.stat().st_size:,} bytes; at most {MOST_BYTES:,} are wanted")
    for package in (wheel, archive):
        with tempfile.TemporaryDirectory() as temporary:
            check(package.resolve(), Path(temporary))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
