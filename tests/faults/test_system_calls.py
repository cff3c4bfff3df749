"""A fault at every system call: kill −9, errors, short reads and writes, slow disks.

In the short form at one call in so many; FAULT_POINTS=all, as `make faults` has it, takes every one. What is done, and
what must hold after each, is in `writing_faults.py` and `reading_scenes.py`.
"""

import re
import shutil
from collections import Counter

import pytest

from injection import ALL_POINTS, run_injected
from tiers import pick

# Scenes, and one in how many of their calls is struck in the short form.
WRITING = {
    "stores": {"write": 97},
    "prepare": {"prepare": 113},
    "plans": {"pack": 37},
    "small files": {"seal": 23, "combine": 23, "run file": 13, "publish": 13},
}
WRITING_FAULTS = [
    "KILL",
    "EIO",
    "ENOSPC",
    "SHORT",
    *pick([], ["EDQUOT", "EMFILE", "ENFILE", "ESTALE", "ENOLCK", "EINTR", "SLOW"]),
]
READING = {
    "views": {"windows": 307, "windows_reopened": 521, "documents": 211, "packed": 277},
    "loaders": {"loader": 307, "loader_without_threads": 521, "loader_of_packed_rows": 211},
}
READING_FAULTS = ["SHORT", "EINTR", "EIO", *pick([], ["EAGAIN", "SLOW", "ESTALE", "EMFILE", "ENFILE"])]
CACHING_FAULTS = ["KILL", "EIO", *pick([], ["ENOSPC", "EMFILE", "SHORT", "ESTALE"])]


def divide(groups, faults):
    """Scenes and faults for one process each: all in the fast tier, a group and all faults, or one of either."""
    if not ALL_POINTS:
        fewer = pick({"all": {scene: 8 * every for group in groups.values() for scene, every in group.items()}}, groups)
        return [pytest.param(scenes, faults, id=name) for name, scenes in fewer.items()]
    scenes = {name: every for group in groups.values() for name, every in group.items()}
    return [pytest.param({name: scenes[name]}, [fault], id=f"{name} {fault}") for name in scenes for fault in faults]


@pytest.mark.parametrize(("scenes", "faults"), divide(WRITING, WRITING_FAULTS))
def test_writing(scenes, faults, tell):
    """What was committed is whole, the error is typed and names the place, and doing it again completes it."""
    tell(run_injected("writing_faults:inject_everywhere", scenes, faults))


@pytest.mark.parametrize(("scenes", "faults"), divide(READING, READING_FAULTS))
def test_reading(scenes, faults, tell):
    """Right data or a typed error that names the place; and right data again once the fault is over."""
    tell(run_injected("reading_scenes:inject_everywhere", scenes, faults))


@pytest.mark.parametrize(("scenes", "faults"), divide({"cache": {"cache": 41}}, CACHING_FAULTS))
def test_caching(scenes, faults, tell):
    """Right batches and no error, whatever happens to the files of the cache."""
    tell(run_injected("cache_faults:inject_everywhere", faults, scenes["cache"]))


def test_a_slow_disk():
    """Every read takes 3 ms: the same batches, and the loader says that it was waited for."""
    (quick, *_), (slow, waited, read, headroom) = run_injected("reading_scenes:read_slowly")
    assert slow == quick
    assert read > 0
    assert waited > 0
    assert headroom > 0


@pytest.mark.slow
def test_what_is_wrong_is_noticed():
    """A store whose manifest is written in place is lost by a kill between two calls; an OSError is no typed error."""
    problems = run_injected("writing_faults:inject_into_sabotaged_sealing")
    assert any("KILL" in problem and "afterwards" in problem for problem in problems)
    assert any("EIO" in problem and "OSError" in problem for problem in problems)


SEEN = "write|pwrite64|fsync|fdatasync|rename|renameat|renameat2|link|linkat|mkdir|mkdirat|unlink|unlinkat|rmdir"
SEEN += "|ftruncate|read|pread64|lseek|openat"


@pytest.mark.slow
def test_no_system_call_passes_the_library_by(tmp_path):
    """strace, which asks the kernel, sees what the library sees: every call of a writer can be struck."""
    if shutil.which("strace") is None:
        pytest.skip("NOT TESTED whether every system call is seen: strace is not installed: apt-get install strace")
    log, store = tmp_path / "log", tmp_path / "store"
    strace = ["strace", "-f", "-y", "-qq", "-s", "0", "-e", "trace=%file,%desc", "-o", str(log)]
    ours = run_injected("writing_faults:list_calls_of_writing", str(store), under=strace)
    seen = Counter()
    for line in log.read_text().splitlines():
        called = re.match(rf"\d+ +({SEEN})\(", line)
        # Folders are listed by a call of the C library's own, which the library knows as a whole (opendir).
        if called and str(store) in line and "O_DIRECTORY" not in line:
            seen[re.sub("at2?$|64$", "", called[1])] += 1
    names = Counter(name for name, _ in ours if name not in ("stat", "close", "opendir", "readdir", "flock"))
    assert names == seen
    assert names.total() > 200
