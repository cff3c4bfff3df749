import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tokenfeed.cli.console import print_json, show_bytes, tell, tell_done
from tokenfeed.cli.options import Json
from tokenfeed.errors import quantity

if TYPE_CHECKING:
    from tokenfeed.text.download.shards import Downloaded


def command(
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
        print_json({"ok": downloaded.ok, **asdict(downloaded)})
    else:
        _show(downloaded)
    raise typer.Exit(0 if downloaded.ok else 1)


def _show(downloaded: "Downloaded") -> None:
    for name, reason in downloaded.failed.items():
        tell(("✗ ", "red"), f"{name}: {reason}")
    size = show_bytes(sum(path.stat().st_size for path in downloaded.paths))
    there = f"{quantity(len(downloaded.paths), 'file')}, {size}, {len(downloaded.skipped):,} of them there before"
    val = ", ".join(downloaded.val[:3]) + (", …" if len(downloaded.val) > 3 else "")
    tell(f"  for validation: {val or 'no file; stream and prepare hold out 0.1% of the documents'}")
    if downloaded.left_out:
        tell(f"  left out, for tests: {quantity(len(downloaded.left_out), 'file')}")
    if downloaded.ok:
        tell_done(f"{downloaded.folder} is complete: {there}")
    else:
        total = len(downloaded.paths) + len(downloaded.failed)
        lacks = f"{len(downloaded.failed):,} of {quantity(total, 'file')}"
        tell(f"{downloaded.folder} lacks {lacks}. Already there: {there}")
