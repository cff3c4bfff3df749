"""Bytes of a numbered file, wherever it lies: open, opened for one read, in memory, or read by a reader."""

from numba import types

from tokenfeed.kernels.jit import inlined, step
from tokenfeed.kernels.posix import (
    EINTR,
    END_OF_FILE,
    OK,
    OPEN_FLAGS,
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
def _open_and_pread(path, address, size, offset):
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
    if file.address != 0:
        c_memcpy(address, file.address + offset, size)
        return OK
    if file.handle > 0:
        return _pread_all(file.handle - 1, address, size, offset)
    return _open_and_pread(file.path, address, size, offset)


@step
def fetch(files, number, offset, size, address):
    """Copy `size` bytes, from `offset` bytes after the start of a file's items, to `address`. Returns a status.

    One system call where the file is read by pread; three where it is TRANSIENT.
    """
    return _fetch(files[number], number, offset, size, address)  # a record: the table's references are not counted
