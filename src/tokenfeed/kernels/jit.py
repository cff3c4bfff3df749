"""How every kernel is compiled: without the GIL, and cached on disk.

Compilation happens at the first call, never at import. Numba keeps the machine code beside the source file, or in
the user's cache folder where the package folder is read-only. Where neither can be written it refuses to decorate
at all; then the kernel is compiled anew in every process, which costs seconds but works.

Numba takes machine code from its cache as long as the file of the kernel is as it was. But what a kernel calls is a
part of it, and may come from another file; so all files of this folder are a part of the key.
"""

import importlib
from collections.abc import Callable
from functools import cache, update_wrapper
from pathlib import Path
from types import CellType, FunctionType
from typing import Any

import numba

from tokenfeed.errors import InterpreterError

__all__ = ["address_of", "inlined", "kernel"]

_BY_ADDRESS = numba.types.int64(*[numba.types.int64] * 5)
_kept_alive: list[Any] = []


def _refuse_subinterpreters() -> None:
    """Numba compiles in the main interpreter alone: in another one, the first call of a kernel never returns."""
    for name in ("_interpreters", "_xxsubinterpreters"):  # since Python 3.13, and before
        try:
            interpreters = importlib.import_module(name)
        except ImportError:
            continue
        if interpreters.get_current() != interpreters.get_main():
            raise InterpreterError(
                "tokenfeed was imported in a subinterpreter, where Numba cannot compile; use the main interpreter, or "
                "another process"
            )
        return


_refuse_subinterpreters()


_SOURCES = tuple(
    (path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in sorted(Path(__file__).parent.glob("*.py"))
)


def _with_sources(function: Callable[..., Any]) -> Any:
    """The same function, with all sources as a closure that it does not look at: Numba's key contains closures."""
    code = function.__code__.replace(co_freevars=("_sources",))
    same = FunctionType(code, function.__globals__, closure=(CellType(_SOURCES),))
    return update_wrapper(same, function)


def _compile(function: Callable[..., Any], **options: Any) -> Any:
    function = _with_sources(function)
    try:
        return numba.njit(cache=True, **options)(function)
    except RuntimeError:  # "cannot cache function …: no locator available for file …"
        return numba.njit(**options)(function)


def kernel(function: Callable[..., Any]) -> Any:
    """Compile `function` for calls from Python: arrays and scalars in, no GIL, cached."""
    return _compile(function, nogil=True)


def inlined(function: Callable[..., Any]) -> Any:
    """Compile `function` for calls from kernels only, as a part of each: it needs no cache of its own.

    A call to it still counts references to the arrays it is given; `kernels/items.py` says where that matters.
    """
    return numba.njit(nogil=True)(function)


@cache
def address_of(function: Callable[..., Any]) -> int:
    """The address of `function`, which takes five numbers and gives one, compiled for `posix.read_by`.

    It is no part of the kernels that call it, so they load no slower for it; it is loaded where it is asked for.
    """
    function = _with_sources(function)
    try:
        compiled = numba.cfunc(_BY_ADDRESS, cache=True)(function)
    except RuntimeError:  # as above
        compiled = numba.cfunc(_BY_ADDRESS)(function)
    _kept_alive.append(compiled)
    return int(compiled.address)
