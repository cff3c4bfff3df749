"""Files whose items lie in pieces, with other bytes between them: they are read as if the pieces were one file.

An array with one `EXTENTS` record describes such a file. Its address stands in the file table as `reader`.

    pieces at bytes [100, 140) and [152, 160) of the file:   firsts 0 40 48   places 100 152
"""

from tokenfeed.kernels import posix
from tokenfeed.kernels.items import last_at_or_before
from tokenfeed.kernels.jit import kernel
from tokenfeed.kernels.posix import OK, array_of, fetch, int64s, prefetch_file

__all__ = ["EXTENTS", "read_extents"]

EXTENTS = posix.words(
    "read",  # address of `read_extents`, compiled
    "files",  # address of another file table, of the files as they lie
    "num_files",
    "data",  # number of the file in that table
    "count",  # number of pieces
    "firsts",  # address of count + 1 int64: the first byte of each piece as it is read, and the end
    "places",  # address of count int64: the byte of the file at which each piece begins
)
_descriptions = array_of(EXTENTS)


@kernel
def read_extents(description, file, offset, size, address):
    """Copy bytes [offset, offset + size) of the pieces, one after the other, to `address`.

    For `posix.read_by`. O(log pieces), and one read for each piece that is touched. At address 0 it only tells the
    operating system that these reads will come.
    """
    about = _descriptions(description, 1)[0]
    files = posix.file_table(about.files, about.num_files)
    firsts = int64s(about.firsts, about.count + 1)
    places = int64s(about.places, about.count)
    low = last_at_or_before(firsts, about.count, offset)
    start = files[about.data].start - 1
    done = 0
    while done < size:
        begin = offset + done - firsts[low]
        count = min(firsts[low + 1] - firsts[low] - begin, size - done)
        if count > 0:
            if address == 0:
                prefetch_file(files[about.data], places[low] + begin - start, count)
            else:
                status = fetch(files, about.data, places[low] + begin - start, count, address + done)
                if status != OK:
                    return status
            done += count
        low += 1
    return OK
