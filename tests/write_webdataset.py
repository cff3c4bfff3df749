"""Writes tests/data/webdataset with the real webdataset: `python tests/write_webdataset.py FOLDER`."""

import sys
from pathlib import Path


def rows():
    return [{"id": number, "text": f"document {number} \u00e9 " + "word " * (number % 7)} for number in range(40)]


def write(folder):
    import webdataset

    Path(folder).mkdir(parents=True, exist_ok=True)
    with webdataset.TarWriter(f"{folder}/text.tar") as text, webdataset.TarWriter(f"{folder}/json.tar") as both:
        for row in rows():
            key = f"{row['id']:06d}"
            text.write({"__key__": key, "txt": row["text"], "json": {"id": row["id"]}, "cls": row["id"]})
            both.write({"__key__": f"part/{key}", "json": row})


if __name__ == "__main__":
    write(sys.argv[1])
