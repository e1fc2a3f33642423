"""What a person sees of a sweep: which ratio is being served, and a row for each at the end."""

from collections.abc import Sequence
from typing import final

from rich import box
from rich.table import Table
from rich.text import Text

from kvcache_engine.engine import Engine
from kvcache_engine.report import bytes_text, seconds_text, tiers_text
from kvcache_engine.results import RequestResult
from kvcache_engine.run import Working
from kvcache_engine.screen import Screen
from kvcache_engine.sweep import SweepPoint
from kvcache_engine.tiers import tier_sizes


@final
class PassView:
    """A `View` of one pass over the workload, called `what`."""

    def __init__(self, screen: Screen, what: str) -> None:
        self._screen = screen
        self._what = what

    def ready(self, engine: Engine, expected: int) -> None:
        self._screen.say(f"{self._what}: {tiers_text(tier_sizes(engine.cache, engine.page_bytes))}")
        self._screen.begin(self._what, expected)

    def finished(self, result: RequestResult, done: int) -> None:
        self._screen.move(done)
        if result.error is not None:
            self._screen.say(f"{result.id}: {result.error}", "red")

    def working(self, state: Working) -> None:
        self._screen.move(note=f"{state.running} running, {state.waiting} waiting")

    def persisting(self, stored: int, remaining: int) -> None:
        self._screen.move(note=f"{stored} pages stored, {remaining} left")


def sweep_table(points: Sequence[SweepPoint]) -> Table:
    """One row a ratio: size of L2, hit rate by tier, time to first token, bytes moved."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("ratio", "L2", "hit rate", "device", "host", "storage", "TTFT median", "TTFT 90 %", "to L2", "from L2"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("dropped")
    for point in points:
        rates, moved, host = point["hit_rates"], point["movements"], point["tiers"].get("host")
        table.add_row(
            f"{point['ratio']:g}",
            "-" if host is None else bytes_text(host["bytes"]),
            f"{point['hit_rate']:.1%}",
            *(f"{rates[tier]:.1%}" for tier in ("device", "host", "storage")),
            seconds_text(point["ttft_median_s"]),
            seconds_text(point["ttft_p90_s"]),
            bytes_text(moved["d2h"]["bytes"]),
            bytes_text(moved["h2d"]["bytes"]),
            Text(
                f"{sum(point['dropped'].values())} tokens" if point["dropped"] else "nothing", no_wrap=True, overflow="ellipsis"
            ),
        )
    return table
