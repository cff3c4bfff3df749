"""The streaming road: text files, the tokenizer, and batches packed on the way. (`tokenfeed.text.download` fetches.)"""

from tokenfeed.text.chat.rendering import Chat, render
from tokenfeed.text.chat.template import ChatTemplate
from tokenfeed.text.sources.files import TextFiles
from tokenfeed.text.streaming.chat import stream_chat
from tokenfeed.text.streaming.feed import TextFeed, stream
from tokenfeed.text.tokenizer.tokenizer import Tokenizer

__all__ = ["Chat", "ChatTemplate", "TextFeed", "TextFiles", "Tokenizer", "render", "stream", "stream_chat"]
