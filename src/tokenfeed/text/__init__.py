"""The streaming road: text files, the tokenizer, and batches packed on the way. (`tokenfeed.text.download` fetches.)"""

from tokenfeed.text.sources.files import TextFiles
from tokenfeed.text.streaming.chat import render, stream_chat
from tokenfeed.text.streaming.feed import TextFeed, stream
from tokenfeed.text.tokenizer.tokenizer import Tokenizer

__all__ = ["TextFeed", "TextFiles", "Tokenizer", "render", "stream", "stream_chat"]
