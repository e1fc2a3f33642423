"""Shows a run to a person: a line while it goes on, a table of requests and a summary at the end. It computes nothing."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvcache_engine.results import RequestResult

_SHOWN = 64
"""Characters of an answer that the table shows."""


def make_console(stderr: bool = False) -> Console:
    """A console that keeps its tables readable when the output is a file or a pipe."""
    console = Console(stderr=stderr, highlight=False)
    return console if console.is_terminal else Console(stderr=stderr, highlight=False, width=140)


def request_table(results: Sequence[RequestResult]) -> Table:
    """One row a request: prompt tokens, cached tokens by tier, time to first token, the answer's beginning."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("request", no_wrap=True)
    for name in ("prompt", "device", "host", "storage", "computed"):
        table.add_column(name, justify="right")
    table.add_column("TTFT", justify="right")
    table.add_column("end", no_wrap=True)
    table.add_column("answer", no_wrap=True)
    for result in results:
        table.add_row(
            result.id,
            str(result.prompt_tokens),
            *(str(result.cached_tokens[tier]) for tier in ("device", "host", "storage")),
            str(result.computed_tokens),
            _seconds(result.ttft_s),
            result.finish_reason,
            _beginning(result),
        )
    return table


def summary_table(summary: Mapping[str, Any]) -> Table:
    """The figures of the whole run, a line each."""
    cached = summary["cached_tokens"]
    rows = {
        "cache": f"{summary['cache_type']}, page size {summary['page_size']}",
        "requests": f"{summary['requests']}, {summary['errors']} failed, {summary['aborted']} aborted",
        "prompt tokens": f"{summary['prompt_tokens']}: {summary['computed_tokens']} computed, {sum(cached.values())} saved"
        f" (device {cached['device']}, host {cached['host']}, storage {cached['storage']})",
        "hit rate": f"{summary['hit_rate']:.1%}",
        "answer tokens": f"{summary['output_tokens']} in {summary['wall_s']:.1f} s",
        "TTFT, median": f"{_seconds(summary['ttft_with_hit_s'])} with a hit, {_seconds(summary['ttft_without_hit_s'])} without",
        "scheduler": f"{summary['scheduler']['steps']} steps, {summary['scheduler']['preemptions']} preemptions,"
        f" {summary['recomputed_tokens']} tokens recomputed after them",
        "compiled programs": str(summary["compiled_programs"]),
    }
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column()
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def _beginning(result: RequestResult) -> Text:
    # Answers and errors are data: shown as they are, never read as markup.
    text = " ".join((result.error or result.text).split())
    return Text(text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…", style="red" if result.error else "")


def _seconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.2f} s"
