"""Writes constraints-hashes.txt: the pinned versions, each with the checksum of the file that pip takes here."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
WITHOUT = ("torch",)
"""Pinned, and installed from builds that differ by machine."""


def main() -> None:
    target = ROOT / "constraints-hashes.txt"
    header = [line for line in target.read_text().splitlines() if line.startswith("#")]
    pins = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line]
    wanted = [line for line in pins if line.partition("==")[0] not in WITHOUT]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        options = ["--dry-run", "--ignore-installed", "--no-deps", "--quiet", "--report", str(report)]
        subprocess.run([sys.executable, "-m", "pip", "install", *options, *wanted], check=True)
        found = json.loads(report.read_text())["install"]
    lines = [
        f"{each['metadata']['name']}=={each['metadata']['version']} "
        f"--hash=sha256:{each['download_info']['archive_info']['hashes']['sha256']}"
        for each in found
    ]
    target.write_text("\n".join([*header, *sorted(lines, key=str.lower), ""]))


if __name__ == "__main__":
    main()
