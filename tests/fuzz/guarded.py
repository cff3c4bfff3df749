"""Memory with an unmapped page right behind it, and one before: whoever reads or writes one byte too far is killed."""

import ctypes
import mmap
import weakref

import numpy as np
import numpy.typing as npt

__all__ = ["guarded"]

_PAGE = mmap.PAGESIZE
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def guarded(data: bytes, *, writable: bool = True) -> npt.NDArray[np.uint8]:
    """A copy of `data` that ends where the next page cannot be touched.

    What kernels are given read-only elsewhere must be so here too, or they are compiled anew.
    """
    size = len(data)
    pages = -(-max(size, 1) // _PAGE)
    total = (pages + 2) * _PAGE
    anonymous = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    base = _libc.mmap(None, total, mmap.PROT_READ | mmap.PROT_WRITE, anonymous, -1, 0)
    if base in (None, ctypes.c_void_p(-1).value):
        raise MemoryError("mmap")
    for page in (base, base + total - _PAGE):
        if _libc.mprotect(page, _PAGE, 0):
            raise OSError(ctypes.get_errno(), "mprotect")
    memory = (ctypes.c_uint8 * size).from_address(base + total - _PAGE - size)
    weakref.finalize(memory, _libc.munmap, base, total)
    array = np.frombuffer(memory, np.uint8)
    array[:] = np.frombuffer(data, np.uint8)
    array.flags.writeable = writable
    return array
