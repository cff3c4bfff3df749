"""`tokenfeed download DATASET`: bring the files of a dataset to this machine."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from tokenfeed.cli.console import console, show_bytes
from tokenfeed.cli.options import Json
from tokenfeed.errors import quantity

if TYPE_CHECKING:
    from tokenfeed.text.download.shards import Downloaded

__all__ = ["download_command"]


def download_command(
    dataset: Annotated[
        str,
        typer.Argument(
            metavar="DATASET",
            help="climbmix-400b, fineweb-edu-100b, hf://owner/name (or hf://owner/name@revision/folder), "
            "or an address such as https://host/shard_{00000..01822}.parquet or s3://bucket/shard_{00000..00099}.parquet",
        ),
    ],
    count: Annotated[int, typer.Option("-n", "--count", help="Number of files to train on; -1: all.", min=-1)] = -1,
    workers: Annotated[int, typer.Option("-w", "--workers", help="Number of files at a time.", min=1)] = 4,
    folder: Annotated[Path | None, typer.Option("-o", "--folder", help="Default: ~/.cache/tokenfeed/<name>.")] = None,
    timeout: Annotated[
        float | None,
        typer.Option(help="Seconds without progress before a file is given up. Default: TOKENFEED_TIMEOUT, or 120."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Download a dataset: its first COUNT files and those for validation. Exit status 1 if some did not come."""
    from tokenfeed.text.download.shards import download

    try:
        downloaded = download(dataset, folder, count=count, workers=workers, progress=not as_json, timeout=timeout)
    except KeyboardInterrupt:
        print("Interrupted. Run the same command again to continue where it stopped.", file=sys.stderr)
        raise typer.Exit(130) from None
    if as_json:
        fields = {
            "ok": downloaded.ok,
            "folder": str(downloaded.folder),
            "paths": [str(path) for path in downloaded.paths],
            "val": list(downloaded.val),
            "left_out": list(downloaded.left_out),
            "skipped": list(downloaded.skipped),
            "failed": downloaded.failed,
        }
        print(json.dumps(fields, indent=2))
    else:
        _show(downloaded)
    raise typer.Exit(0 if downloaded.ok else 1)


def _show(downloaded: "Downloaded") -> None:
    for name, reason in downloaded.failed.items():
        console.print(Text.assemble(("✗ ", "red"), f"{name}: {reason}"))
    size = show_bytes(sum(path.stat().st_size for path in downloaded.paths))
    there = f"{quantity(len(downloaded.paths), 'file')}, {size}, {len(downloaded.skipped):,} of them there before"
    val = ", ".join(downloaded.val[:3]) + (", …" if len(downloaded.val) > 3 else "")
    console.print(Text(f"  for validation: {val or 'no file; stream and prepare hold out 0.1% of the documents'}"))
    if downloaded.left_out:
        console.print(Text(f"  left out, for tests: {quantity(len(downloaded.left_out), 'file')}"))
    if downloaded.ok:
        console.print(Text.assemble(("✓ ", "green"), f"{downloaded.folder} is complete: {there}"))
    else:
        total = quantity(len(downloaded.paths) + len(downloaded.failed), "file")
        console.print(Text(f"{downloaded.folder} lacks {len(downloaded.failed):,} of {total}; there are {there}"))
