"""Limits that the operating system sets this process."""

import resource

__all__ = ["default_open_files"]


def default_open_files() -> int:
    """A quarter of the files that this process may open, at most 4,096."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 4096 if soft == resource.RLIM_INFINITY else max(1, min(4096, soft // 4))
