"""Bytes of a numbered file, wherever it lies: open, opened for the moment, in memory, or behind a reader."""

from numba import types

from tokenfeed.kernels.jit import inlined
from tokenfeed.kernels.posix import (
    ADDRESS,
    EINTR,
    END_OF_FILE,
    HANDLE,
    OK,
    OPEN_FLAGS,
    PATH,
    READER,
    SIZE,
    START,
    UNOPENED,
    c_close,
    c_memcpy,
    c_open,
    c_pread,
    errno,
    read_by,
)


@inlined
def _pread_all(fd, address, size, offset):
    done = 0
    while done < size:
        count = c_pread(types.int32(fd), address + done, size - done, offset + done)
        if count < 0:
            error = errno()
            if error != EINTR:
                return error
        elif count == 0:
            return END_OF_FILE
        else:
            done += count
    return OK


@inlined
def fetch(files, file, offset, size, address):
    """Copy `size` bytes, from `offset` bytes behind the file's START, to `address`. Returns a status.

    One system call where the file is read positionally; three where it is TRANSIENT.
    """
    handle = files[file, HANDLE]
    start = files[file, START] - 1
    if handle == 0 or start < 0:
        return UNOPENED
    if size == 0:
        return OK
    offset += start
    reader = files[file, READER]
    if reader != 0:
        if offset + size > files[file, SIZE]:
            return END_OF_FILE
        return read_by(reader, file, offset, size, address)
    source = files[file, ADDRESS]
    if source != 0:
        if offset + size > files[file, SIZE]:
            return END_OF_FILE
        c_memcpy(address, source + offset, size)
        return OK
    if handle > 0:
        return _pread_all(handle - 1, address, size, offset)
    path = files[file, PATH]
    if path == 0:
        return UNOPENED
    fd = c_open(path, types.int32(OPEN_FLAGS))
    while fd < 0 and errno() == EINTR:
        fd = c_open(path, types.int32(OPEN_FLAGS))
    if fd < 0:
        return errno()
    status = _pread_all(fd, address, size, offset)
    c_close(fd)
    return status
