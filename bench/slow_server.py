"""A real S3 server on loopback, each answer of which comes so much later: `python bench/slow_server.py ROOT SECONDS`.

Prints one line of JSON: the environment by which a client finds it. Ends when its standard input does.
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from servers import faulty_proxy, s3_server


def main() -> None:
    root, seconds = Path(sys.argv[1]), float(sys.argv[2])
    with s3_server() as s3, faulty_proxy(s3.url, latency=seconds) as proxy:
        s3.put(root, under="store")
        print(json.dumps(s3.environment(proxy.url)), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
