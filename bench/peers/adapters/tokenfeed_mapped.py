"""tokenfeed with `backend="mmap"`: faster while everything fits the page cache, at the risk of SIGBUS."""

import tokenfeed_loader
from tokenfeed_loader import OVERLAP, PACKAGES, Feed, breakdown, write

__all__ = ["OVERLAP", "PACKAGES", "SETTINGS", "Feed", "breakdown", "write"]

SETTINGS = tokenfeed_loader.SETTINGS + ', backend="mmap"'
tokenfeed_loader.BACKEND = "mmap"
