"""Memory of this process, and the GPUs of this machine. Nothing here raises."""

import os
import resource
import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

__all__ = ["Gpu", "find_gpus", "look_for_gpus", "measure_memory"]


@dataclass(frozen=True)
class Gpu:
    """A GPU as NVML reports it."""

    index: int
    name: str
    busy: float
    """Fraction of the last moments in which it ran something."""
    used_bytes: int
    total_bytes: int


def measure_memory() -> int:
    """Resident bytes of this process now; on systems with neither /proc nor psutil, the maximum so far."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        pass
    try:
        return int(import_module("psutil").Process().memory_info().rss)
    except ImportError:
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024


def find_gpus() -> list[Gpu]:
    """The GPUs of this machine; none if `pynvml` (the package nvidia-ml-py) is not installed."""
    return look_for_gpus()[0]


def look_for_gpus() -> tuple[list[Gpu], str]:
    """(GPUs of this machine, reason if there are none)."""
    try:
        nvml = import_module("pynvml")
    except ImportError:
        return [], "nvidia-ml-py is not installed"
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return [], "this machine has no NVIDIA driver"
    try:
        found = [_describe_gpu(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]
    except nvml.NVMLError as error:
        return [], f"NVML reports: {error}"
    finally:
        nvml.nvmlShutdown()
    return found, "" if found else "this machine has no NVIDIA GPU"


def _describe_gpu(nvml: Any, index: int) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    name = nvml.nvmlDeviceGetName(handle)
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    busy = nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
    return Gpu(index, name.decode() if isinstance(name, bytes) else name, busy, memory.used, memory.total)
