"""Checks of this machine: Python, kernels, cores, limits, disks, packages, credentials. They never tell secrets."""

import errno
import os
import platform
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tokenfeed.errors import TokenfeedError
from tokenfeed.kernels import items
from tokenfeed.loader.loader import Loader
from tokenfeed.observe.machine import find_gpus
from tokenfeed.storage.credentials import s3_config
from tokenfeed.store.store import open_store
from tokenfeed.store.writer import Writer
from tokenfeed.text.tokenizer.engines import ENGINES, available_cores, make_engine
from tokenfeed.text.tokenizer.vocabulary import PATTERNS, Vocabulary

__all__ = ["Check", "check_all"]

_FEW_FILES = 1024
_LITTLE_DISK = 5 << 30
_NEEDED = {"msgpack": "the msgpack codec for payloads"}
_OPTIONAL = {
    "pyarrow": ("'tokenfeed[text]'", "reads Parquet"),
    "orjson": ("'tokenfeed[text]'", "reads JSONL faster"),
    "tiktoken": ("'tokenfeed[text]'", "tokenises by unusual patterns"),
    "rustbpe": ("'tokenfeed[text]'", "trains vocabularies"),
    "obstore": ("'tokenfeed[remote]'", "reads object stores, HTTP, and downloads"),
    "huggingface_hub": ("'tokenfeed[hub]'", "datasets and tokenizers of the Hugging Face hub"),
    "torch": ("'tokenfeed[torch]'", "batches as tensors"),
    "jax": ("'tokenfeed[jax]'", "batches as global arrays"),
    "ray": ("'tokenfeed[ray]'", "prepare on a cluster"),
    "tokenizers": ("'tokenfeed[tokenizers]'", "Hugging Face tokenizers that are not plain byte-level BPE"),
    "sentencepiece": ("'tokenfeed[tokenizers]'", "tokenizers of SentencePiece"),
    "psutil": ("'tokenfeed[ui]'", "memory of the process on systems without /proc"),
    "pynvml": ("nvidia-ml-py", "GPU load in `tokenfeed top`"),
}
_DISTRIBUTIONS = {"pynvml": "nvidia-ml-py"}
_VARIABLES = ("AWS_", "AZURE_", "GOOGLE_", "HF_TOKEN", "STORAGE_EMULATOR_HOST")
_FILES = (".aws/credentials", ".aws/config", ".config/gcloud/application_default_credentials.json")


@dataclass(frozen=True)
class Check:
    """The result of one check."""

    name: str
    status: Literal["ok", "note", "problem"]
    """A problem stops tokenfeed from working here; a note does not."""
    found: str
    advice: str = ""
    """What to do; empty if nothing needs doing."""


def check_all() -> Iterator[Check]:
    """Run the checks. Takes a second, or ten if the kernels must be compiled; contacts no server."""
    yield Check("system", "ok", f"{platform.system()} {platform.release()}, {platform.machine()}")
    yield Check("python", "ok", f"{platform.python_version()} ({platform.python_implementation()})")
    yield Check("page size", "ok", f"{os.sysconf('SC_PAGE_SIZE'):,} bytes")
    for name in ("tokenfeed", "numpy", "numba", *_NEEDED, *_OPTIONAL):
        yield _check_package(name)
    for gpu in find_gpus():
        memory = f"{gpu.used_bytes / 1e9:.1f} of {gpu.total_bytes / 1e9:.1f} GB used"
        yield Check(f"GPU {gpu.index}", "ok", f"{gpu.name}, {memory}, busy {gpu.busy:.0%}")
    cache = os.environ.get("TOKENFEED_CACHE") or "~/.cache/tokenfeed"
    looks: dict[str, Callable[[], Check]] = {
        "kernels": _check_kernels,
        "cores": _check_cores,
        "open files": _check_descriptors,
        "reads in flight": _check_nowait,
        "cache folder": partial(_check_disk, "cache folder", Path(cache).expanduser()),
        "temporary files": partial(_check_disk, "temporary files", Path(tempfile.gettempdir())),
        "tokenizer engines": _check_engines,
        "credentials": _check_credentials,
    }
    for name, look in looks.items():
        try:
            yield look()
        except Exception as error:  # noqa: BLE001 — one failing check must not hide the others
            yield Check(name, "note", f"the check failed: {type(error).__name__}", "`tokenfeed --debug doctor`")


def _check_kernels() -> Check:
    """Write a small store, read it back through a loader, and report where the machine code came from."""
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
    except Exception as error:  # noqa: BLE001 — any error here is what the user must know
        found = f"a small store could not be written and read: {type(error).__name__}: {error}"
        advice = "Check that $TMPDIR is writable and that Numba works: `tokenfeed --debug doctor` shows the traceback."
        return Check("kernels", "problem", found, advice)
    if not right:
        found = "a small store did not read back as it was written"
        return Check("kernels", "problem", found, "Reinstall numba and tokenfeed.")
    seconds = f"{time.perf_counter() - began:.1f} s for a first store and batch"
    stats: Any = items.read_windows.stats
    if stats.cache_path is None:
        advice = "Set NUMBA_CACHE_DIR to a writable folder, so that they are compiled only once."
        return Check("kernels", "note", f"compiled in every process, {seconds}", advice)
    if sum(stats.cache_hits.values()):
        return Check("kernels", "ok", f"loaded from {stats.cache_path}; {seconds}")
    return Check("kernels", "ok", f"compiled now and kept in {stats.cache_path} for the next process; {seconds}")


def _check_cores() -> Check:
    usable, there = available_cores(), os.cpu_count() or 1
    quota = _cgroup_cores()
    found = f"{usable} usable of {there}"
    if quota is not None and quota < usable:
        advice = "More threads than that only slow each other down: limit threads=, and the workers of prepare."
        return Check("cores", "note", f"{found}, limited by a quota to {quota:g}", advice)
    if usable == 1:
        return Check("cores", "note", found, "Loader and training loop share this core; give the job two or more.")
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
        advice = f"`ulimit -n {_FEW_FILES * 8}` allows stores of many shards to keep their files open."
        return Check("open files", "note", found, advice)
    return Check("open files", "ok", found)


def _check_nowait() -> Check:
    """Whether RWF_NOWAIT works: the kernels use it to find the reads that must wait, and overlap those."""
    name = "reads in flight"
    without = 'Random reads from a slow disk happen one after the other; backend="mmap" may be faster.'
    if sys.platform != "linux":
        return Check(name, "note", "this system cannot say whether a read would wait", without)
    with tempfile.TemporaryFile() as file:
        file.write(bytes(4096))
        file.flush()
        try:
            os.preadv(file.fileno(), [bytearray(4096)], 0, os.RWF_NOWAIT)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EWOULDBLOCK):
                why = os.strerror(error.errno or 0)
                found = f"preadv2 with RWF_NOWAIT does not work in {tempfile.gettempdir()}: {why}"
                return Check(name, "note", found, f"If your stores are on such a file system: {without}")
    return Check(name, "ok", "preadv2 with RWF_NOWAIT works")


def _check_disk(name: str, folder: Path) -> Check:
    there = folder
    while not there.exists():
        there = there.parent
    free = shutil.disk_usage(there).free
    found = f"{free / 1e9:,.1f} GB free for {folder}"
    if not os.access(there, os.W_OK | os.X_OK):
        return Check(name, "note", f"{there} is not writable", "Set TOKENFEED_CACHE or TMPDIR to a writable folder.")
    if free < _LITTLE_DISK:
        return Check(name, "note", found, "Downloads and the cache of remote data may not fit.")
    return Check(name, "ok", found)


def _check_package(name: str) -> Check:
    if not find_spec(name):
        if name in _NEEDED:
            advice = f"pip install {name}, or reinstall tokenfeed."
            return Check(name, "problem", f"not installed ({_NEEDED[name]})", advice)
        install, what = _OPTIONAL[name]
        return Check(name, "note", f"not installed ({what})", f"pip install {install}, if you need it.")
    try:
        version = metadata.version(_DISTRIBUTIONS.get(name, name))
    except metadata.PackageNotFoundError:
        version = "unknown version"
    return _check_torch(version) if name == "torch" else Check(name, "ok", version)


def _check_torch(version: str) -> Check:
    """Importing it may take seconds."""
    try:
        cuda = import_module("torch").cuda
        if not cuda.is_available():
            return Check("torch", "ok", f"{version}, without CUDA devices")
        names = [cuda.get_device_name(index) for index in range(cuda.device_count())]
    except Exception as error:  # noqa: BLE001 — a broken driver raises all kinds
        found = f"{version} cannot be used: {type(error).__name__}"
        return Check("torch", "note", found, "Reinstall it for this machine.")
    return Check("torch", "ok", f"{version}, CUDA: {', '.join(names)}")


def _check_engines() -> Check:
    vocabulary = Vocabulary({bytes((byte,)): byte for byte in range(256)}, PATTERNS["gpt2"], {})
    broken: list[str] = []
    there = [name for name in ENGINES if name == "tokenfeed" or find_spec(name)]
    for name in there:
        try:
            ids, _ = make_engine(vocabulary, name).encode(["Bytes, as they are."], 1)
        except Exception as error:  # noqa: BLE001 — libraries of others
            broken.append(f"{name} ({type(error).__name__})")
        else:
            broken += [] if bytes(ids.tolist()) == b"Bytes, as they are." else [name]
    if broken:
        return Check("tokenizer engines", "problem", f"not working: {', '.join(broken)}", "Reinstall them.")
    return Check("tokenizer engines", "ok", ", ".join(there))


def _check_credentials() -> Check:
    """Names of the credentials for object stores and the Hugging Face hub."""
    files = [f"~/{name}" for name in _FILES if (Path.home() / name).exists()]
    found = ", ".join([*(name for name in sorted(os.environ) if name.startswith(_VARIABLES)), *files])
    if not found:
        return Check("credentials", "ok", "none found: only public remote data can be read")
    try:
        signs = "access_key_id" in s3_config()
    except TokenfeedError as error:
        return Check("credentials", "note", found, str(error))
    return Check("credentials", "ok", f"{found}{'; requests to S3 are signed' if signs else ''}")
