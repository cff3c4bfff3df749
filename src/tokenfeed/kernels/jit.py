"""How every kernel is compiled and loaded: without the GIL, cached on disk, and nothing imported for it.

Compilation happens at the first call, never at import. Numba keeps the machine code beside the source file, or in the
user's cache folder where the package folder is read-only; where neither can be written, every process compiles again.
Numba takes machine code from its cache as long as the kernel's own file is unchanged. A kernel also contains functions
of other files, so all files of this folder are part of the cache key.

Before Numba loads cached code it sets up its compiler: it imports SciPy if it is installed, every package that extends
Numba, and 200 modules of its own, 0.5 s in all. Finished machine code needs none of that. `_Kernel` and `_Cache` leave
it out; a kernel that has to be compiled, and any other Numba code in the process, still gets all of it. `_Part` leaves
out of compilation what no kernel needs. They rest on names that Numba may move; `numba.njit` then takes their place.
"""

import importlib
import logging
import threading
from collections.abc import Callable
from functools import cached_property, partial, update_wrapper
from pathlib import Path
from types import CellType, FunctionType
from typing import Any

import numba

from tokenfeed.errors import InterpreterError

__all__ = ["address_of", "inlined", "kernel", "step"]


def _refuse_subinterpreters() -> None:
    """Numba compiles in the main interpreter only: in another one, the first call of a kernel never returns."""
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


class _Watch:
    """Says once, by a line of the logger `tokenfeed`, that kernels are being compiled, if that takes a while.

    Nothing is said where they are in the cache.
    """

    patience_seconds = 2.0

    def __init__(self) -> None:
        self._under_way = 0
        self._timer: threading.Timer | None = None

    def begin(self) -> None:
        self._under_way += 1
        if self._timer is None:
            self._timer = threading.Timer(self.patience_seconds, self._look)
            self._timer.daemon = True
            self._timer.start()

    def end(self) -> None:
        self._under_way -= 1

    def _look(self) -> None:
        if self._under_way == 0:
            self._timer = None  # a later kernel may take longer
            return
        logging.getLogger("tokenfeed").warning(
            "tokenfeed is compiling its kernels, for up to a minute; `tokenfeed doctor` says where they are kept"
        )


_watch = _Watch()

try:
    from numba.core.caching import FunctionCache
    from numba.core.registry import CPUDispatcher
    from numba.core.runtime import rtsys
except ImportError:
    _dispatcher: Any = partial(numba.njit, nogil=True)
    _part: Any = partial(numba.njit, nogil=True)
else:

    class _Cache(FunctionCache):
        """Numba's cache on disk, read without setting up the compiler first."""

        has_missed = False
        """Whether the code that was asked for last must be compiled."""

        def load_overload(self, sig: Any, target_context: Any) -> Any:
            """The code compiled for the argument types `sig`, or None. Costs 10 ms, and 40 ms once in a process."""
            try:
                load = self._load_overload
            except AttributeError:  # a Numba that works differently inside: take the slow way
                return super().load_overload(sig, target_context)
            rtsys.initialize(target_context)  # what machine code calls to allocate and free arrays
            found = load(sig, target_context)
            self.has_missed = found is None
            if self.has_missed:
                _watch.begin()
            return found

    class _Kernel(CPUDispatcher):
        """A compiled function as `numba.njit` makes it, except for how it gets ready for its first call."""

        def _compilation_chain_init_hook(self) -> None:
            """Load no Numba extensions to find the types of arguments. The compiler loads them if it has to run."""

        def enable_caching(self) -> None:
            self._cache = _Cache(self.py_func)

        def compile(self, sig: Any) -> Any:
            cache = self._cache if isinstance(self._cache, _Cache) else None
            if cache is None:
                _watch.begin()
            try:
                return super().compile(sig)
            finally:
                if cache is None or cache.has_missed:
                    _watch.end()
                if cache is not None:
                    cache.has_missed = False

    class _Part(CPUDispatcher):
        """A function for kernels alone, compiled as far as LLVM's unoptimized code: it is optimized as a part of each.

        Numba would also optimize it by itself, make machine code of it, and two more functions by which Python and C
        could call it: 60% of the time that a kernel takes to compile.
        """

        def __init__(self, function: Callable[..., Any], **options: Any) -> None:
            wrappers = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
            super().__init__(function, targetoptions={**_OPTIONS, **wrappers, **options})
            self._compiler._customize_flags = _without_machine_code

        def add_overload(self, cres: Any) -> None:
            library, key = cres.library, object()  # kernels know it by the object that Python would call
            library._optimize_final_module = _do_nothing
            library._finalize_final_module = partial(_finalize, library)
            self.targetctx.insert_user_function(key, cres.fndesc, [library])
            self.overloads[tuple(cres.signature.args)] = cres._replace(entry_point=key)

        @cached_property
        def _kernel(self) -> Any:
            return kernel(self.py_func)

        def __call__(self, *arguments: Any) -> Any:
            """From Python, it is a kernel like any other."""
            return self._kernel(*arguments)

    def _without_machine_code(flags: Any) -> Any:
        flags.no_compile = True
        return flags

    def _do_nothing() -> None: ...

    def _finalize(library: Any) -> None:
        """As Numba does it, without machine code."""
        library._finalize_dynamic_globals()
        library._finalized = True

    _OPTIONS = {"nopython": True, "nogil": True, "boundscheck": None}
    _dispatcher = partial(_Kernel, targetoptions=_OPTIONS)
    _part = _Part


def kernel(function: Callable[..., Any]) -> Any:
    """Compile `function` for calls from Python: arrays and scalars in, no GIL, cached.

    All sources are in a closure that it never reads: Numba's key contains closures.
    """
    code = function.__code__.replace(co_freevars=("_sources",))
    same = FunctionType(code, function.__globals__, closure=(CellType(_SOURCES),))
    dispatcher = _dispatcher(update_wrapper(same, function))
    try:
        dispatcher.enable_caching()
    except RuntimeError:  # "cannot cache function …: no locator available for file …"
        pass
    return dispatcher


def inlined(function: Callable[..., Any]) -> Any:
    """Compile `function` for calls from kernels only, as a part of each: it needs no cache of its own.

    A call to it still counts references to the arrays it is given; `kernels/items.py` says where that matters.
    """
    return _part(function)


def step(function: Callable[..., Any]) -> Any:
    """As `inlined`, for the steps of a loop that a call would slow down: LLVM must put the code where it is called."""
    return _part(function, forceinline=True)


def address_of(reader: Any) -> int:
    """The address of a kernel that takes five numbers and returns one, for `posix.read_by`.

    Kernels that call it by address contain none of it, so they load faster; it is loaded where it is needed.
    """
    arguments = (numba.types.int64,) * 5
    reader.compile(arguments)
    compiled = reader.overloads[arguments]
    return int(compiled.library.get_pointer_to_function(compiled.fndesc.llvm_cfunc_wrapper_name))
