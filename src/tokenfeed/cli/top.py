import contextlib
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from tokenfeed.cli.console import console, make_table, print_json, show_bytes, show_count, styled
from tokenfeed.cli.options import Json
from tokenfeed.errors import quantity

if TYPE_CHECKING:
    from tokenfeed.observe.diagnosis import Rates
    from tokenfeed.observe.watching import Watched
    from tokenfeed.storage.remote import RemoteStats

_BARS = "▁▂▃▄▅▆▇█"
_HISTORY = 40


def command(
    path: Annotated[
        str, typer.Argument(metavar="STATS_OR_RUN", help="File written by observe.publish, or the run file beside it.")
    ],
    every: Annotated[float, typer.Option(help="Seconds between updates.", min=0.1)] = 1.0,
    span: Annotated[float, typer.Option(help="Seconds over which rates are averaged.", min=0.1)] = 5.0,
    once: Annotated[bool, typer.Option("--once", help="Print once and exit.")] = False,
    as_json: Json = False,
) -> None:
    """Watch a run: tokens per second, what the loop waits for, queue, CPU, memory. Ctrl-C stops."""
    from tokenfeed.observe.watching import watch

    if as_json:
        watched = [asdict(each) for each in watch(path, seconds=span)]
        print_json({"loaders": watched})
        return
    drawing = _draw(watch(path, seconds=span))
    if once or not console.is_terminal:
        console.print(drawing)
        return
    with contextlib.suppress(KeyboardInterrupt), Live(drawing, console=console, auto_refresh=False) as live:
        while True:
            time.sleep(every)
            live.update(_draw(watch(path, seconds=span)), refresh=True)


def _draw(watched: "list[Watched]") -> RenderableType:
    right = ("tokens/s", "samples/s", "waits", "queue", "CPU", "memory")
    names = ("rank", "process", *right, "tokens/s before")
    rows = [_describe(each) for each in watched]
    parts: list[RenderableType] = [make_table(names, rows, right=right, bare=True)]
    for each in watched:
        rank = f"Rank {each.last.rank}: " if len(watched) > 1 else ""
        parts += [styled(rank + line) for line in each.words]
        if each.rates.remote is not None:
            parts.append(_describe_remote(each.rates, each.rates.remote))
    return Group(*parts)


def _describe(each: "Watched") -> list[Text]:
    style = {"runs": "", "ended": "dim", "silent": "yellow", "gone": "red"}[each.state]
    last, rates = each.last, each.rates
    cells = (
        f"{last.rank} of {last.world_size}",
        f"{last.host} {last.pid}",
        show_count(rates.items_per_second),
        show_count(rates.samples_per_second),
        (f"{rates.wait_fraction:.1%}", "red" if rates.wait_fraction >= 0.01 else "green"),
        f"{last.stats.queued} of {last.stats.prefetch}",
        f"{each.cpu:.0%}",
        show_bytes(last.memory_bytes),
        _spark(each.history),
    )
    return [styled(cell, style=style) for cell in cells]


def _describe_remote(rates: "Rates", remote: "RemoteStats") -> Text:
    seconds = max(rates.seconds, 1e-9)
    told = f"{remote.requests / seconds:,.0f} requests/s, {show_bytes(remote.bytes_fetched / seconds)}/s fetched"
    looked = remote.cache_hits + remote.cache_misses
    if looked:
        told += f", {remote.cache_hits / looked:.0%} from the cache on disk"
    waits, retries = quantity(remote.waits, "wait"), quantity(remote.retries, "retry", "retries")
    return styled(f"Servers: {told}, {waits}, {retries}", style="dim")


def _spark(values: list[float]) -> str:
    """The last values as bars; the highest value is the tallest."""
    shown = values[-_HISTORY:]
    most = max(shown, default=0.0) or 1.0
    return "".join(_BARS[round((len(_BARS) - 1) * value / most)] for value in shown)
