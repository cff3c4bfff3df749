"""Text to a store, on one machine or many: `prepare`, and what functions given to it need."""

from tokenfeed.preparation.mapping import Characters, MapFunction, annotates
from tokenfeed.preparation.prepare import prepare
from tokenfeed.preparation.records import Recipe
from tokenfeed.preparation.report import Report

__all__ = ["Characters", "MapFunction", "Recipe", "Report", "annotates", "prepare"]
