"""The page of `tokenfeed serve`: shows a store or a run, read-only and on this machine only."""

from tokenfeed.ui.server import Server
from tokenfeed.ui.subject import Subject, open_subject

__all__ = ["Server", "Subject", "open_subject"]
