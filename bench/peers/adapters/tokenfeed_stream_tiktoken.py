"""tokenfeed's streaming road with the engine that the peers have."""

import tokenfeed_stream
from tokenfeed_stream import OVERLAP, Feed

__all__ = ["OVERLAP", "PACKAGES", "SETTINGS", "Feed"]

PACKAGES = ("tokenfeed", "tiktoken", "torch")
SETTINGS = tokenfeed_stream.SETTINGS.replace("engine tokenfeed", "engine tiktoken")
tokenfeed_stream.ENGINE = "tiktoken"
