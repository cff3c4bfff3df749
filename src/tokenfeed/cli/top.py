"""`tokenfeed top RUN`: shows a running loader, live."""

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tokenfeed.cli.console import console, print_json, show_bytes, show_count
from tokenfeed.cli.options import Json

if TYPE_CHECKING:
    from tokenfeed.observe.machine import Gpu
    from tokenfeed.observe.watching import Watched

__all__ = ["top"]

_BARS = "▁▂▃▄▅▆▇█"
_HISTORY = 40


def top(
    path: Annotated[
        Path, typer.Argument(metavar="STATS_OR_RUN", help="File written by observe.publish, or the run file beside it.")
    ],
    every: Annotated[float, typer.Option(help="Seconds between updates.", min=0.1)] = 1.0,
    span: Annotated[float, typer.Option(help="Seconds over which rates are averaged.", min=0.1)] = 5.0,
    once: Annotated[bool, typer.Option("--once", help="Print once and exit.")] = False,
    as_json: Json = False,
) -> None:
    """Watch a run: tokens per second, what the loop waits for, queue, CPU, memory, GPUs. Ctrl-C stops."""
    from tokenfeed.observe.machine import find_gpus
    from tokenfeed.observe.watching import watch

    if as_json:
        watched = [asdict(each) for each in watch(path, seconds=span)]
        print_json({"loaders": watched, "gpus": [asdict(gpu) for gpu in find_gpus()]})
        return
    if once or not console.is_terminal:
        console.print(_draw(watch(path, seconds=span), find_gpus()))
        return
    from rich.live import Live

    try:
        with Live(_draw(watch(path, seconds=span), find_gpus()), console=console, auto_refresh=False) as live:
            while True:
                time.sleep(every)
                live.update(_draw(watch(path, seconds=span), find_gpus()), refresh=True)
    except KeyboardInterrupt:
        return


def _draw(watched: "list[Watched]", gpus: "list[Gpu]") -> RenderableType:
    table = Table(box=None, padding=(0, 1), header_style="dim")
    for name in ("rank", "process", "tokens/s", "samples/s", "waits", "queue", "CPU", "memory", "tokens/s before"):
        table.add_column(name, justify="left" if name in ("rank", "process", "tokens/s before") else "right")
    for each in watched:
        style = {"runs": "", "ended": "dim", "silent": "yellow", "gone": "red"}[each.state]
        now = each.last.stats
        table.add_row(
            f"{each.last.rank} of {each.last.world_size}",
            f"{each.last.host} {each.last.pid}",
            show_count(each.rates.items_per_second),
            show_count(each.rates.samples_per_second),
            Text(f"{each.rates.wait_fraction:.1%}", style="red" if each.rates.wait_fraction >= 0.01 else "green"),
            f"{now.queued} of {now.prefetch}",
            f"{each.cpu:.0%}",
            show_bytes(each.last.memory_bytes),
            _spark(each.history),
            style=style,
        )
    parts: list[RenderableType] = [table]
    for each in watched:
        lines = each.words
        if len(watched) > 1:
            lines = [f"Rank {each.last.rank}: {line}" for line in lines]
        parts += [Text(line) for line in lines]
        if each.rates.remote is not None:
            parts.append(_describe_remote(each))
    for gpu in gpus:
        memory = f"{show_bytes(gpu.used_bytes)} of {show_bytes(gpu.total_bytes)}"
        parts.append(Text(f"GPU {gpu.index} {gpu.name}: busy {gpu.busy:.0%}, {memory}", style="dim"))
    return Group(*parts)


def _describe_remote(each: "Watched") -> Text:
    remote: Any = each.rates.remote
    seconds = max(each.rates.seconds, 1e-9)
    told = f"{remote.requests / seconds:,.0f} requests/s, {show_bytes(remote.bytes_fetched / seconds)}/s fetched"
    looked = remote.cache_hits + remote.cache_misses
    if looked:
        told += f", {remote.cache_hits / looked:.0%} from the cache on disk"
    return Text(f"Servers: {told}, {remote.waits:,} waits, {remote.retries:,} retries", style="dim")


def _spark(values: list[float]) -> str:
    """The last values as bars; the highest value is the tallest."""
    shown = values[-_HISTORY:]
    most = max(shown, default=0.0)
    if most <= 0:
        return _BARS[0] * len(shown)
    return "".join(_BARS[round((len(_BARS) - 1) * value / most)] for value in shown)
