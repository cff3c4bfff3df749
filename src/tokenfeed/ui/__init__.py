"""The page of `tokenfeed serve`: a store, a run or a folder of text to look at, on this machine alone, read-only."""

from tokenfeed.ui.server import Server
from tokenfeed.ui.subject import Subject, open_subject

__all__ = ["Server", "Subject", "open_subject"]
