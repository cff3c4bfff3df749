"""How every kernel is compiled: without the GIL, and cached on disk.

Compilation happens at the first call, never at import. Numba keeps the machine code beside the source file, or in
the user's cache folder where the package folder is read-only. Where neither can be written it refuses to decorate
at all; then the kernel is compiled anew in every process, which costs seconds but works.
"""

import importlib
from collections.abc import Callable
from functools import cache
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


def _compile(function: Callable[..., Any], **options: Any) -> Any:
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
    try:
        compiled = numba.cfunc(_BY_ADDRESS, cache=True)(function)
    except RuntimeError:  # as above
        compiled = numba.cfunc(_BY_ADDRESS)(function)
    _kept_alive.append(compiled)
    return int(compiled.address)
