"""Runs of `prepare` that overlap on one bucket, some of them killed: what comes of it is complete, or refused.

KILL_ROUNDS says how many trials there are; a long run sets it to 50.
"""

import json
import os
import random
import subprocess
import sys

import pytest

import tokenfeed
from golden import golden_tokenizer
from preparing import make_documents, picture, write_jsonl
from servers import s3_server
from tokenfeed.store.sealing import load_manifest
from tokenfeed.store.verify import verify

TRIALS = int(os.environ.get("KILL_ROUNDS", 3))
OPTIONS = {"slice_bytes": 12_000, "shard_bytes": 5_000, "val": 0.2, "keep": ["url"], "workers": 0}

# Everything is imported and compiled once; every run is a fork of this process, which itself has no threads.
CODE = """
import json, os, random, signal, sys, time
import tokenfeed
from tokenfeed.kernels.checksum import checksum

text, folder, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
tokenizer = tokenfeed.Tokenizer.load(folder + "/tokenizer")
tokenfeed.prepare(text, folder + "/warm", tokenizer=tokenizer, **options)

def run(store, delay):
    time.sleep(delay)
    try:
        report = tokenfeed.prepare(text, store, tokenizer=tokenizer, **options)
        assert report.is_complete
    except tokenfeed.errors.StateError as error:
        print("refused:", error, file=sys.stderr, flush=True)
        os._exit(3)
    except BaseException:
        import traceback
        traceback.print_exc()
        os._exit(4)
    os._exit(0)

for line in sys.stdin:
    trial = json.loads(line)
    runs = []
    for delay in trial["delays"]:
        child = os.fork()
        if child == 0:
            run(trial["store"], delay)
        runs.append(child)
    for child, moment in sorted(zip(runs, trial["kills"]), key=lambda each: each[1] or 0):
        if moment is not None:
            time.sleep(moment)
            os.kill(child, signal.SIGKILL)
    print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in runs]), flush=True)
"""


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    write_jsonl(folder / "text.jsonl", make_documents(250))
    golden_tokenizer("tiktoken").save(folder / "tokenizer")
    tokenfeed.prepare(folder / "text.jsonl", folder / "expected", tokenizer=folder / "tokenizer", **OPTIONS)
    return folder


@pytest.mark.slow
def test_overlapping_runs_on_a_bucket(text, tmp_path, monkeypatch):
    """A job that is started again while its predecessor works, or dies: never does a sealed store lack a shard."""
    expected = picture(text / "expected")
    listed = [entry.name for entry in load_manifest(text / "expected").shards]
    assert len(listed) > 20
    with s3_server() as s3:
        s3.use(monkeypatch)
        arguments = [sys.executable, "-c", CODE, text / "text.jsonl", text, json.dumps(OPTIONS)]
        outcomes = {0: 0, 3: 0, -9: 0}
        with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as runs:
            for trial in range(TRIALS):
                rng = random.Random(trial)
                store, count = f"s3://bucket/{trial}", rng.choice((2, 2, 3))
                plan = {
                    "store": store,
                    "delays": [round(rng.uniform(0, 1), 2) * number for number in range(count)],
                    "kills": [rng.choice((None, None, round(rng.uniform(0, 2), 2))) for _ in range(count)],
                }
                runs.stdin.write(json.dumps(plan) + "\n")
                runs.stdin.flush()
                ended = json.loads(runs.stdout.readline())
                assert {*ended} <= outcomes.keys(), (plan, ended)
                for status in ended:
                    outcomes[status] += 1
                manifest = None
                if 0 in ended:
                    manifest = load_manifest(store)
                    assert [entry.name for entry in manifest.shards or ()] == listed, (plan, ended)
                    assert verify(store).problems == []
                report = tokenfeed.prepare(text / "text.jsonl", store, tokenizer=text / "tokenizer", **OPTIONS)
                assert report.is_complete
                assert report.made == 0 or manifest is None
                s3.get(str(trial), tmp_path / str(trial))
                assert picture(tmp_path / str(trial)) == expected, (plan, ended)
            runs.stdin.close()
        print(f"{TRIALS} trials: {outcomes[0]} runs completed, {outcomes[3]} were refused, {outcomes[-9]} were killed")
        assert outcomes[0] > 0
