"""Memory of this process."""

import os
import resource
import sys
from importlib import import_module
from pathlib import Path

__all__ = ["measure_memory"]


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
