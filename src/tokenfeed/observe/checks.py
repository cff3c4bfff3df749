"""What this machine has, and lacks, for tokenfeed: one `Check` after the other."""

import errno
import os
import platform
import resource
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tokenfeed.kernels import items
from tokenfeed.loader.loader import Loader
from tokenfeed.observe.diagnosis import count_cores
from tokenfeed.store.store import open_store
from tokenfeed.store.writer import Writer

__all__ = ["Check", "check_machine"]

_FEW_FILES = 1024
_LITTLE_DISK = 5 << 30


@dataclass(frozen=True)
class Check:
    """One thing that was looked at."""

    name: str
    status: Literal["ok", "note", "problem"]
    """A problem stops tokenfeed from working here; a note does not."""
    found: str
    advice: str = ""
    """What to do, where there is something to do."""


def check_machine() -> Iterator[Check]:
    """Look at Python, kernels, processor, limits and disks. Takes half a second, or ten where kernels are compiled."""
    yield Check("system", "ok", f"{platform.system()} {platform.release()}, {platform.machine()}")
    yield Check("python", "ok", f"{platform.python_version()} ({platform.python_implementation()})")
    for name in ("tokenfeed", "numpy", "numba"):
        yield Check(name, "ok", metadata.version(name))
    looks: dict[str, Callable[[], Check]] = {
        "kernels": _check_kernels,
        "cores": _check_cores,
        "open files": _check_descriptors,
        "page size": _check_pages,
        "reads in flight": _check_nowait,
        **{name: partial(_check_disk, name, folder) for name, folder in _find_folders().items()},
    }
    for name, look in looks.items():
        try:
            yield look()
        except Exception as error:  # noqa: BLE001 — a check that cannot be made must not hide the others
            yield Check(name, "note", f"cannot be told: {type(error).__name__}")


def _check_kernels() -> Check:
    """Write a small store, read it back through a loader, and see where the machine code came from."""
    began = time.perf_counter()
    tokens = np.arange(3000, dtype="<u2")
    try:
        with tempfile.TemporaryDirectory(prefix="tokenfeed-") as folder:
            with Writer(f"{folder}/store", columns={"tokens": "uint16"}) as writer:
                writer.append({"tokens": tokens})
            loader = Loader(open_store(f"{folder}/store").windows(100), 29, shuffle=False, rank=0, world_size=1)
            read = next(loader).inputs
            loader.close()
        right = np.array_equal(np.asarray(read).reshape(-1), tokens[:2900])
    except Exception as error:  # noqa: BLE001 — whatever it is, it is what the user must know
        return Check(
            "kernels",
            "problem",
            f"a small store could not be written and read: {type(error).__name__}: {error}",
            "Run `tokenfeed --debug doctor`; is the folder for temporary files ($TMPDIR) writable, and Numba sound?",
        )
    if not right:
        return Check(
            "kernels", "problem", "a small store did not read back as it was written", "Reinstall numba and tokenfeed."
        )
    seconds = f"{time.perf_counter() - began:.1f} s for a first store and batch"
    stats: Any = items.read_windows.stats
    if stats.cache_path is None:
        return Check(
            "kernels",
            "note",
            f"compiled in every process, {seconds}",
            "Set NUMBA_CACHE_DIR to a folder that can be written to, and they are compiled once.",
        )
    if sum(stats.cache_hits.values()):
        return Check("kernels", "ok", f"compiled before, kept in {stats.cache_path}; {seconds}")
    return Check("kernels", "ok", f"compiled now, kept in {stats.cache_path} for the next process; {seconds}")


def _check_cores() -> Check:
    usable, there = count_cores(), os.cpu_count() or 1
    quota = _cgroup_cores()
    found = f"{usable} usable of {there}"
    if quota is not None and quota < usable:
        return Check(
            "cores",
            "note",
            f"{found}, limited to the time of {quota:g}",
            "More threads than that take time from each other: keep threads, and workers of prepare, below it.",
        )
    if usable == 1:
        return Check(
            "cores", "note", found, "Reading ahead shares it with the training loop; give the job two or more."
        )
    return Check("cores", "ok", found)


def _cgroup_cores() -> float | None:
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        return None


def _check_descriptors() -> Check:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    told = ["no limit" if limit == resource.RLIM_INFINITY else f"{limit:,}" for limit in (soft, hard)]
    found = f"{told[0]} (may be raised to {told[1]})"
    if soft != resource.RLIM_INFINITY and soft < _FEW_FILES:
        return Check(
            "open files", "note", found, f"`ulimit -n {_FEW_FILES * 8}` lets stores of many shards keep them open."
        )
    return Check("open files", "ok", found)


def _check_pages() -> Check:
    size = os.sysconf("SC_PAGE_SIZE")
    return Check("page size", "ok", f"{size:,} bytes")


def _check_nowait() -> Check:
    """Whether a read can ask for what is in memory alone; then reads that must wait are overlapped."""
    name = "reads in flight"
    without = 'Random reads from a slow disk are made one after the other; backend="mmap" may be faster.'
    if not hasattr(os, "RWF_NOWAIT"):
        return Check(name, "note", "this system cannot tell whether a read would wait", without)
    with tempfile.TemporaryFile() as file:
        file.write(bytes(4096))
        file.flush()
        try:
            os.preadv(file.fileno(), [bytearray(4096)], 0, os.RWF_NOWAIT)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EWOULDBLOCK):
                where = (
                    f"preadv2 with RWF_NOWAIT does not work in {tempfile.gettempdir()}: {os.strerror(error.errno or 0)}"
                )
                return Check(name, "note", where, f"Where stores lie on such a file system: {without}")
    return Check(name, "ok", "preadv2 with RWF_NOWAIT works")


def _find_folders() -> dict[str, Path]:
    cache = os.environ.get("TOKENFEED_CACHE")
    return {
        "cache folder": Path(cache).expanduser() if cache else Path.home() / ".cache" / "tokenfeed",
        "temporary files": Path(tempfile.gettempdir()),
    }


def _check_disk(name: str, folder: Path) -> Check:
    there = folder
    while not there.exists():
        there = there.parent
    free = shutil.disk_usage(there).free
    found = f"{free / 1e9:,.1f} GB free for {folder}"
    if not os.access(there, os.W_OK | os.X_OK):
        return Check(
            name, "note", f"{there} cannot be written to", "Set TOKENFEED_CACHE, or TMPDIR, to a folder that can."
        )
    if free < _LITTLE_DISK:
        return Check(name, "note", found, "Downloads and caches of remote data may not fit.")
    return Check(name, "ok", found)
