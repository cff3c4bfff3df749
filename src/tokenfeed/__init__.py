"""tokenfeed feeds language-model training.

with tokenfeed.Writer("store/", columns={"tokens": "uint16"}, spans={"documents": "json"}) as writer:
    writer.append({"tokens": [1, 2, 3]}, documents={"url": "…"})

store = tokenfeed.open("store/")
batch = store.windows(2048).read([5, 3, 8])
"""

import importlib
from typing import TYPE_CHECKING, Any

from tokenfeed import errors  # first: it refuses Windows before anything is imported that Windows lacks
from tokenfeed.loader.loader import Loader
from tokenfeed.plan.dealing import Cost
from tokenfeed.plan.mixing import mix
from tokenfeed.plan.permutation import Permutation
from tokenfeed.plan.plan import Plan
from tokenfeed.plan.shares import Stage
from tokenfeed.storage.remote import Remote
from tokenfeed.store.resolve import combine
from tokenfeed.store.sealing import seal
from tokenfeed.store.store import Store
from tokenfeed.store.store import open_store as open  # noqa: A004
from tokenfeed.store.writer import Writer
from tokenfeed.version import __version__

if TYPE_CHECKING:
    from tokenfeed.preparation import prepare
    from tokenfeed.runs.run import Run
    from tokenfeed.text import Tokenizer, stream

__all__ = [
    "Cost",
    "Loader",
    "Permutation",
    "Plan",
    "Remote",
    "Run",
    "Stage",
    "Store",
    "Tokenizer",
    "Writer",
    "__version__",
    "combine",
    "errors",
    "mix",
    "open",
    "prepare",
    "seal",
    "stream",
]

_MODULES = ["jax", "observe", "plan", "text", "torch"]
_LATER = {"Run": "runs.run", "Tokenizer": "text", "prepare": "preparation", "stream": "text"}
"""Public modules, and names with the module each is from, imported when they are first used: some need a package that
may not be installed, and who trains from a store should not wait for the road from text."""


_INSTEAD = {
    "compress": "choose a plain dtype that fits when the store is written, such as uint16 for up to 65,536 tokens",
    "curriculum": "list the samples in their order, shuffle=tokenfeed.plan.Listed.write(path, np.argsort(difficulty))",
}
"""What serves instead of names that many would look for here."""


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"tokenfeed.{name}")
    if name in _LATER:
        value = globals()[name] = vars(importlib.import_module(f"tokenfeed.{_LATER[name]}"))[name]
        return value
    instead = f": {_INSTEAD[name]}" if name in _INSTEAD else ""
    raise AttributeError(f"module 'tokenfeed' has no attribute {name!r}{instead}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_MODULES])
