"""Text from elsewhere: `download("climbmix-400b", count=8)`."""

from tokenfeed.text.download.datasets import PRESETS, Dataset
from tokenfeed.text.download.shards import Downloaded, download

__all__ = ["PRESETS", "Dataset", "Downloaded", "download"]
