"""What this process, and the graphics processors of this machine, are doing. Nothing here is ever an error."""

import os
import resource
import sys
import time
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

__all__ = ["Gpu", "find_gpus", "look_for_gpus", "measure_cpu_seconds", "measure_memory"]


@dataclass(frozen=True)
class Gpu:
    """A graphics processor as NVML sees it."""

    index: int
    name: str
    busy: float
    """Share of the last moments in which it ran something."""
    used_bytes: int
    total_bytes: int


def measure_cpu_seconds() -> float:
    """Of all threads of this process."""
    return time.process_time()


def measure_memory() -> int:
    """Bytes of memory that this process has now; where nothing tells, the most it ever had."""
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
    """Those of this machine, if `pynvml` (the package nvidia-ml-py) is installed; else none."""
    return look_for_gpus()[0]


def look_for_gpus() -> tuple[list[Gpu], str]:
    """(those of this machine, why there are none)."""
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
        return [], f"NVML says {error}"
    finally:
        nvml.nvmlShutdown()
    return found, "" if found else "this machine has no NVIDIA GPU"


def _describe_gpu(nvml: Any, index: int) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    name = nvml.nvmlDeviceGetName(handle)
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    busy = nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
    return Gpu(index, name.decode() if isinstance(name, bytes) else name, busy, memory.used, memory.total)
