"""`prepare` on a real Ray cluster: the bytes of a single process, also when workers are killed."""

import os
import random
import threading

import psutil
import pytest

import tokenfeed
from golden import golden_tokenizer
from preparing import make_documents, picture, write_jsonl
from tokenfeed.errors import FormatError, WorkerError
from tokenfeed.store.verify import verify

ROUNDS = int(os.environ.get("KILL_ROUNDS", "2"))
pytestmark = pytest.mark.filterwarnings("ignore")
OPTIONS = {"slice_bytes": 120_000, "shard_bytes": 100_000, "val": 0.1, "keep": ["url"]}


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Some dozens of slices, a tokenizer, and the store that one process makes of them."""
    folder = tmp_path_factory.mktemp("text")
    write_jsonl(folder / "text.jsonl", make_documents(900))
    golden_tokenizer("tiktoken").save(folder / "tokenizer")
    prepare(folder, folder / "expected", workers=0, engine="local")
    return folder


@pytest.fixture(scope="module")
def cluster():
    """One node with two cores."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield ray
    ray.shutdown()


def prepare(text, store, *, engine="ray", **options):
    return tokenfeed.prepare(
        text / "text.jsonl", store, tokenizer=text / "tokenizer", engine=engine, **{**OPTIONS, **options}
    )


def busy_workers():
    """Processes of the cluster that make a slice; their titles say which."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if process.name().startswith("ray::slice") or "ray::slice" in " ".join(process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found


def test_the_same_bytes_and_only_what_is_missing(text, cluster, tmp_path):
    assert prepare(text, tmp_path / "store").is_complete
    assert picture(tmp_path / "store") == picture(text / "expected")
    assert prepare(text, tmp_path / "store").made == 0
    name = sorted((tmp_path / "store" / ".prepare" / "slices").iterdir())[3]
    name.unlink()
    assert prepare(text, tmp_path / "store", workers=1).made == 1
    assert picture(tmp_path / "store") == picture(text / "expected")


SLOW = """
import time
from tokenfeed.preparation import annotates

@annotates()
def annotate(text, kept, tokens):
    time.sleep(0.002)
    return {}
"""


@pytest.mark.slow
def test_kill_minus_nine_of_workers(text, cluster, tmp_path):
    """In mid-slice. Ray begins the slice again, on another worker."""
    (tmp_path / "slow.py").write_text(SLOW)
    function = f"{tmp_path / 'slow.py'}:annotate"
    prepare(text, tmp_path / "expected", engine="local", workers=0, map=function)
    rng = random.Random(ROUNDS)
    total = 0
    while total < ROUNDS:
        killed = []
        is_done = threading.Event()

        def kill(pauses, killed=killed, is_done=is_done):
            for pause in pauses:
                is_done.wait(pause)
                while not is_done.is_set() and not (busy := busy_workers()):
                    is_done.wait(0.01)
                if not is_done.is_set():
                    busy[-1].kill()
                    killed.append(busy[-1].pid)

        # Two a run: a slice that dies three times is given up.
        killer = threading.Thread(target=kill, args=([rng.uniform(0, 0.6), rng.uniform(0, 0.6)],))
        killer.start()
        try:
            assert prepare(text, tmp_path / f"store{total}", map=function).is_complete
        finally:
            is_done.set()
            killer.join()
        assert verify(tmp_path / f"store{total}").ok
        assert picture(tmp_path / f"store{total}") == picture(tmp_path / "expected")
        assert killed
        total += len(killed)


FILE = """
import os, signal
from tokenfeed.preparation import annotates

@annotates(columns={"half": "uint16"})
def annotate(text, kept, tokens):
    if kept["url"].endswith("/777"):
        DEED
    return {"half": tokens // 2}
"""


@pytest.mark.slow
def test_functions_travel_and_their_deeds_come_back(text, cluster, tmp_path):
    function = tmp_path / "mine.py"
    function.write_text(FILE.replace("DEED", "pass"))
    for engine, workers in (("ray", None), ("local", 0)):
        prepare(text, tmp_path / engine, engine=engine, workers=workers, map=f"{function}:annotate")
    assert picture(tmp_path / "ray") == picture(tmp_path / "local")
    function.write_text(FILE.replace("DEED", "raise ZeroDivisionError(text[:5])"))
    with pytest.raises(ZeroDivisionError):
        prepare(text, tmp_path / "error", map=f"{function}:annotate")
    function.write_text(FILE.replace("DEED", "os.kill(os.getpid(), signal.SIGKILL)"))
    with pytest.raises(WorkerError, match=r"slice \d+ of text\.jsonl was given up after 3 attempts on the Ray cluster"):
        prepare(text, tmp_path / "death", map=f"{function}:annotate")
    assert verify(tmp_path / "death").ok


def test_errors_are_typed(cluster, text, tmp_path):
    (tmp_path / "text.jsonl").write_text('{"text": "fine"}\n{"text": 5}\n')
    with pytest.raises(FormatError, match="line 2"):
        tokenfeed.prepare(tmp_path / "text.jsonl", tmp_path / "store", tokenizer=text / "tokenizer", engine="ray")
