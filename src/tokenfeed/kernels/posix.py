"""Reading numbered files from inside a kernel: the few C functions it takes, and the table that describes the files.

A *file table* is an int64 array with one row per file. All zeros means that Python has not opened the file yet; a
kernel that meets such a row stops with `UNOPENED`, Python opens the file, and the kernel is called again.

    HANDLE    0 unopened, fd + 1 when open, TRANSIENT when the file is to be opened and closed around each read
    ADDRESS   where the file (or an array standing for it) lies in memory, 0 when it is read positionally
    SIZE      bytes in the file
    START     1 + the byte at which its items begin (0: the row is not complete yet)
    PATH      address of the NUL-terminated path, for TRANSIENT
    READER    address of what it is read by, where that is not the file itself: an array of int64 whose first entry is
              the address of a function (`kernels/blocks.py` for files that lie elsewhere, `kernels/checked.py`)

Two threads may look at a row while a third fills it in. Whatever order the stores become visible in, a row that is
only half there reads as UNOPENED, because every field a reader needs is non-zero in a finished row.
"""

import os
import sys
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from tokenfeed.kernels.jit import inlined

HANDLE, ADDRESS, SIZE, START, PATH, READER = range(6)
FILE_FIELDS = 6
TRANSIENT = -1

OK = 0  # a positive status is an errno
END_OF_FILE = -1
UNOPENED = -2
BAD_INDEX = -3
BAD_SPANS = -4
SMALL_OUTPUT = -5
MISSING = -6  # blocks of a file that lies elsewhere; the log of its cache says which
DAMAGED = -7  # a block that is not what was written; its reader says which

EINTR = 4
_WILLNEED = 3
OPEN_FLAGS = os.O_RDONLY | os.O_CLOEXEC

# Pointers are passed as plain integers of the same size: a ctypes pointer would defeat the on-disk kernel cache.
c_pread = types.ExternalFunction("pread", types.int64(types.int32, types.intp, types.intp, types.int64))
c_open = types.ExternalFunction("open", types.int32(types.intp, types.int32))
c_close = types.ExternalFunction("close", types.int32(types.int32))
c_memcpy = types.ExternalFunction("memcpy", types.intp(types.intp, types.intp, types.intp))
c_memmove = types.ExternalFunction("memmove", types.intp(types.intp, types.intp, types.intp))
_errno_location = types.ExternalFunction("__error" if sys.platform == "darwin" else "__errno_location", types.intp())


@intrinsic
def _load_int32(_context: Any, address: Any) -> Any:
    """The 32-bit integer at an address."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.load(builder.inttoptr(arguments[0], ir.IntType(32).as_pointer()))

    return types.int32(types.intp), generate


def _pointer_to(kind: Any) -> Any:
    pointer = types.CPointer(kind)

    @intrinsic
    def as_pointer(_context: Any, address: Any) -> Any:
        """An address as a pointer, for `numba.carray`."""

        def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], context.get_value_type(pointer))

        return pointer(types.intp), generate

    return as_pointer


uint8_pointer = _pointer_to(types.uint8)
uint16_pointer = _pointer_to(types.uint16)
uint32_pointer = _pointer_to(types.uint32)
int32_pointer = _pointer_to(types.int32)
int64_pointer = _pointer_to(types.int64)


@intrinsic
def read_by(_context: Any, reader: Any, file: Any, offset: Any, size: Any, address: Any) -> Any:
    """Have a READER copy bytes [offset, offset + size) of a file to `address`; at 0 it shall only make ready to."""
    word = ir.IntType(64)
    function = ir.FunctionType(word, [word] * 5).as_pointer()

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.call(builder.load(builder.inttoptr(arguments[0], function.as_pointer())), arguments)

    return types.int64(*[types.int64] * 5), generate


@inlined
def errno():
    return types.int64(_load_int32(_errno_location()))


@intrinsic
def prefetch_line(_context: Any, address: Any) -> Any:
    """Begin to load the cache line at an address."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        pointer, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer, number, number, number])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        read, keep, data = number(0), number(3), number(1)
        builder.call(function, [builder.inttoptr(arguments[0], pointer), read, keep, data])
        return ir.Constant(number, 0)

    return types.int32(types.intp), generate


if sys.platform == "linux":
    HAS_NOWAIT = True
    NOWAIT = 8
    c_preadv2 = types.ExternalFunction(
        "preadv2", types.int64(types.int32, types.intp, types.int32, types.int64, types.int32)
    )
    _fadvise = types.ExternalFunction("posix_fadvise", types.int32(types.int32, types.int64, types.int64, types.int32))

    @inlined
    def try_pread(fd, vector, offset):
        """Read into the (address, size) of `vector` what the page cache has; fewer bytes, or -1, if not all."""
        return c_preadv2(types.int32(fd), vector, types.int32(1), offset, types.int32(NOWAIT))

    @inlined
    def begin_read(fd, offset, size):
        """Ask the operating system to begin reading, without waiting for it."""
        _fadvise(types.int32(fd), offset, size, types.int32(_WILLNEED))

    @inlined
    def prefetch_file(files, file, offset, size):
        """`begin_read` for a numbered file."""
        handle = files[file, HANDLE]
        start = files[file, START] - 1
        if handle > 0 and start >= 0 and files[file, ADDRESS] == 0:
            begin_read(handle - 1, offset + start, size)

else:
    HAS_NOWAIT = False

    @inlined
    def try_pread(fd, vector, offset):
        """Only Linux can tell whether a read would have to wait."""
        return -1

    @inlined
    def begin_read(fd, offset, size):
        """Only Linux takes such a hint by file descriptor."""

    @inlined
    def prefetch_file(files, file, offset, size):
        """As `begin_read`."""
