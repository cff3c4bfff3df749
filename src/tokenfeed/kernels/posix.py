"""Reading numbered files from inside a kernel: the table that describes them, and `fetch`, which reads from any.

A *file table* is an array of `FILE` records, one per file. All zeros means that Python has not opened the file yet: a
kernel that meets such a record stops with `UNOPENED`, Python opens the file, and the kernel is called again.

Two threads may read a record while a third fills it in. In whatever order the stores become visible, a record that is
half filled in reads as UNOPENED, because every field that a kernel needs is non-zero in a finished record.
"""

import os
import sys
from typing import Any

import numpy as np
from llvmlite import ir
from numba import from_dtype, types
from numba.core import cgutils
from numba.extending import intrinsic

from tokenfeed.kernels.jit import inlined, step


def words(*names: str) -> np.dtype[Any]:
    """A record of int64 fields."""
    return np.dtype([(name, np.int64) for name in names])


FILE = words(
    "handle",  # 0 unopened, fd + 1 if open, TRANSIENT if it is opened and closed around each read
    "address",  # where the file, or an array in its place, lies in memory; 0 if it is read by pread
    "size",  # bytes in the file
    "start",  # 1 + the byte at which its items begin; 0: the record is not complete yet
    "path",  # address of the NUL-terminated path, if TRANSIENT
    "reader",  # address of a reader that reads in place of the kernel, or 0 (see `read_by`)
)
TRANSIENT = -1


def record(kind: np.dtype[Any], **fields: int) -> Any:
    """An array with one record of a kind; fields that are not given are 0."""
    array = np.zeros(1, kind)
    for name, value in fields.items():
        array[name] = value
    return array


# The status that a kernel returns; a positive one is an errno. MISSING: blocks of a remote file are not in memory, and
# the log of its cache says which.
OK, END_OF_FILE, UNOPENED, BAD_INDEX, BAD_SPANS, SMALL_OUTPUT, MISSING = range(0, -7, -1)

_EINTR = 4
_OPEN_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # a FIFO in the place of a file is not waited for
_NOWAIT, _WILLNEED = 8, 3
HAS_NOWAIT = sys.platform == "linux"
"""Whether the system can tell if a read would have to wait. A constant: Numba drops the branches that need it."""

# Pointers are passed as plain integers of the same size: a ctypes pointer would defeat the on-disk kernel cache.
c_pread = types.ExternalFunction("pread", types.int64(types.int32, types.intp, types.intp, types.int64))
_preadv2 = types.ExternalFunction(
    "preadv2", types.int64(types.int32, types.intp, types.int32, types.int64, types.int32)
)
_fadvise = types.ExternalFunction("posix_fadvise", types.int32(types.int32, types.int64, types.int64, types.int32))
_c_open = types.ExternalFunction("open", types.int32(types.intp, types.int32))
_c_close = types.ExternalFunction("close", types.int32(types.int32))
c_memcpy = types.ExternalFunction("memcpy", types.intp(types.intp, types.intp, types.intp))
c_memmove = types.ExternalFunction("memmove", types.intp(types.intp, types.intp, types.intp))
c_memset = types.ExternalFunction("memset", types.intp(types.intp, types.int32, types.intp))
_errno_location = types.ExternalFunction("__error" if sys.platform == "darwin" else "__errno_location", types.intp())


def array_of(kind: Any) -> Any:
    """A function for kernels: the array of `count` elements at an address, which owns no memory.

    `numba.carray` makes the same, but is compiled once more for every kind, 0.1 s each.
    """
    array = types.Array(from_dtype(np.dtype(kind)), 1, "C")

    @intrinsic
    def array_at(_context: Any, address: Any, count: Any) -> Any:
        def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            made = context.make_array(array)(context, builder)
            item_bytes = context.get_constant(types.intp, context.get_abi_sizeof(context.get_data_type(array.dtype)))
            made.data = builder.inttoptr(arguments[0], made.data.type)
            made.shape = cgutils.pack_array(builder, [arguments[1]])
            made.strides = cgutils.pack_array(builder, [item_bytes])
            made.nitems, made.itemsize = arguments[1], item_bytes
            made.meminfo = cgutils.get_null_value(made.meminfo.type)
            made.parent = cgutils.get_null_value(made.parent.type)
            return made._getvalue()

        return array(types.intp, types.intp), generate

    return array_at


int32s, int64s = map(array_of, (np.int32, np.int64))
file_table = array_of(FILE)


@intrinsic
def read_by(_context: Any, reader: Any, file: Any, offset: Any, size: Any, address: Any) -> Any:
    """Have a reader copy bytes [offset, offset + size) of a file to `address`; if that is 0, only prepare to.

    A reader is an array of int64 that begins with the address of a function: `blocks.read_through` for remote files.
    """
    word = ir.IntType(64)
    function = ir.FunctionType(word, [word] * 5).as_pointer()

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.call(builder.load(builder.inttoptr(arguments[0], function.as_pointer())), arguments)

    return types.int64(*[types.int64] * 5), generate


@inlined
def _errno():
    return types.int64(int32s(_errno_location(), 1)[0])


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


@inlined
def try_pread(fd, vector, offset):
    """Read what the page cache has into the (address, size) of `vector`: fewer bytes, or -1, if not all."""
    if HAS_NOWAIT:
        return _preadv2(types.int32(fd), vector, types.int32(1), offset, types.int32(_NOWAIT))
    return -1


@inlined
def begin_read(fd, offset, size):
    """Ask the operating system to begin reading, without waiting for it."""
    if HAS_NOWAIT:
        _fadvise(types.int32(fd), offset, size, types.int32(_WILLNEED))


@inlined
def prefetch_file(file, offset, size):
    """`begin_read` for a file of a table."""
    if file.handle > 0 and file.start > 0 and file.address == 0:
        begin_read(file.handle - 1, offset + file.start - 1, size)


@inlined
def _pread_all(fd, address, size, offset):
    done = 0
    while done < size:
        count = c_pread(types.int32(fd), address + done, size - done, offset + done)
        if count < 0:
            error = _errno()
            if error != _EINTR:
                return error
        elif count == 0:
            return END_OF_FILE
        else:
            done += count
    return OK


@inlined
def _open_and_pread(path, address, size, offset):
    if path == 0:
        return UNOPENED
    fd = _c_open(path, types.int32(_OPEN_FLAGS))
    while fd < 0 and _errno() == _EINTR:
        fd = _c_open(path, types.int32(_OPEN_FLAGS))
    if fd < 0:
        return _errno()
    status = _pread_all(fd, address, size, offset)
    _c_close(fd)
    return status


@inlined
def _fetch(file, number, offset, size, address):
    if file.handle == 0 or file.start == 0:
        return UNOPENED
    if size == 0:
        return OK
    offset += file.start - 1
    if (file.reader != 0 or file.address != 0) and offset + size > file.size:
        return END_OF_FILE
    if file.reader != 0:
        return read_by(file.reader, number, offset, size, address)
    if address == 0:
        return OK
    if file.address != 0:
        c_memcpy(address, file.address + offset, size)
        return OK
    if file.handle > 0:
        return _pread_all(file.handle - 1, address, size, offset)
    return _open_and_pread(file.path, address, size, offset)


@step
def fetch(files, number, offset, size, address):
    """Copy `size` bytes, from `offset` bytes after the start of a file's items, to `address`. Returns a status.

    At address 0, a reader only prepares. One system call where the file is read by pread; three if it is TRANSIENT.
    """
    return _fetch(files[number], number, offset, size, address)  # a record: the table's references are not counted
