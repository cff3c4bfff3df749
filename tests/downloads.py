"""What tests of downloads share: files to serve, and ways to ask for them."""

import random
import re
import subprocess
import sys
import time

from tokenfeed.text.download.shards import download

SIZE = 200_000


def make_file(seed: int, size: int = SIZE) -> bytes:
    """Bytes that look like a parquet file from afar."""
    return b"PAR1" + random.Random(seed).randbytes(size - 8) + b"PAR1"


def label(value):
    """The name of a parameter, the same in every process."""
    return re.sub(r"<function (\w+) at \w+>", r"\1", str(value))[:80]


def put_shards(server, count, *script, size=SIZE, **options):
    """`/shard_0.parquet` … on the server, the script for the first; returns their bytes and the address of all."""
    data = {f"shard_{number}.parquet": make_file(number, size) for number in range(count)}
    for number, (name, content) in enumerate(data.items()):
        server.put(f"/{name}", content, *(script if number == 0 else ()), **options)
    return data, server.url(f"/shard_{{0..{count - 1}}}.parquet")


def get(address, folder, **options):
    return download(address, folder, **{"timeout": 5.0, **options})


def contents(folder):
    """All files of a folder but the list of them: what is left behind would show."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "files.json"}


def ranges(server, path):
    return [request.range for request in server.asked(path)]


CHILD = """
import sys
from tokenfeed.text.download.shards import download
done = download(sys.argv[1], sys.argv[2], workers=2, timeout=60.0)
sys.exit(0 if done.ok else f"failed: {done.failed}")
"""


def start(address, folder):
    return subprocess.Popen([sys.executable, "-W", "error", "-c", CHILD, address, str(folder)], stderr=subprocess.PIPE)


def wait_until(condition, seconds=100.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def size_of(path):
    return path.stat().st_size if path.exists() else 0
