"""The version of this package; `pyproject.toml` takes it from here."""

__all__ = ["__version__"]

__version__ = "0.1.0"
