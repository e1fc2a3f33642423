"""Shows a run to a person: a line while it goes on, a table of requests and a summary at the end. It computes nothing."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvcache_engine.persisting import Persisted
from kvcache_engine.results import RequestResult
from kvcache_engine.tiers import TierSize

LEVELS = {"device": "L1", "host": "L2", "storage": "L3"}
"""What people call the tiers."""
DIRECTIONS = {"d2h": "L1 to L2", "h2d": "L2 to L1", "store": "L2 to L3", "fetch": "L3 to L2"}

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
    for name in ("prompt", "device", "host", "storage", "computed", "TTFT"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("end", no_wrap=True)
    # The only column that gives way in a narrow terminal; its texts are cut, not wrapped.
    table.add_column("answer")
    for result in results:
        table.add_row(
            Text(printable(result.id)),
            str(result.prompt_tokens),
            *(str(result.cached_tokens[tier]) for tier in ("device", "host", "storage")),
            str(result.computed_tokens),
            seconds_text(result.ttft_s),
            result.finish_reason,
            _beginning(result),
        )
    return table


def summary_table(summary: Mapping[str, Any]) -> Table:
    """The figures of the whole run, a line each."""
    cached, prompt, cache = summary["cached_tokens"], summary["prompt_tokens"], summary["cache"]
    by_tier = ", ".join(f"{tier} {tokens / prompt if prompt else 0:.1%}" for tier, tokens in cached.items())
    not_begun = f", {summary['not_begun']} of them not begun" if summary["not_begun"] else ""
    not_reached = prompt - summary["computed_tokens"] - sum(cached.values())
    rows = {
        "cache": f"{summary['cache_type']}, page size {summary['page_size']}",
        "tiers": tiers_text(summary["tiers"]),
        "requests": f"{summary['requests']}, {summary['errors']} failed, {summary['aborted']} aborted{not_begun}",
        "prompt tokens": f"{prompt}: {summary['computed_tokens']} computed, {sum(cached.values())} saved"
        f" (device {cached['device']}, host {cached['host']}, storage {cached['storage']})"
        + (f", {not_reached} not reached" if not_reached else ""),
        "hit rate": f"{summary['hit_rate']:.1%} ({by_tier})",
        "answer tokens": f"{summary['output_tokens']} in {summary['wall_s']:.1f} s",
        "TTFT, median": f"{seconds_text(summary['ttft_with_hit_s'])} with a hit,"
        f" {seconds_text(summary['ttft_without_hit_s'])} without",
        "scheduler": f"{summary['scheduler']['steps']} steps, {summary['scheduler']['preemptions']} preemptions,"
        f" {summary['recomputed_tokens']} tokens recomputed after them",
        "compiled programs": str(summary["compiled_programs"]),
    }
    if "host" in summary["tiers"]:
        rows |= _moved(summary, {"d2h": "host_written_tokens", "h2d": "host_loaded_tokens"})
        rows["evicted"] = f"{cache['device_evicted_tokens']} tokens from L1, {cache['host_evicted_tokens']} from L2"
        rows["dropped"] = _by_reason(cache["dropped"], "tokens") or "nothing"
        if cache["postponed"]:
            rows["put off"] = f"{_by_reason(cache['postponed'], 'tokens')} (every try counts)"
    if summary["storage"] is not None:
        rows["storage"] = f"{summary['storage']}: {cache['storage_state']}"
        rows |= _moved(summary, {"fetch": "storage_loaded_tokens", "store": "storage_written_tokens"})
        rows["missed"] = _by_reason(cache["misses"], "look-ups") or "nothing"
        rows["stored at the end"] = _persisted(summary["persisted"])
        rows["reused"] = _reused(summary)
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def _moved(summary: Mapping[str, Any], tokens: Mapping[str, str]) -> dict[str, str]:
    """A row for each direction of `tokens`, which names the counter that belongs to it."""
    rows: dict[str, str] = {}
    for direction, counter in tokens.items():
        moved = summary["movements"][direction]
        rate = "" if moved["bytes_per_s"] is None else f", {bytes_text(moved['bytes_per_s'])}/s from request to commit"
        rows[DIRECTIONS[direction]] = f"{summary['cache'][counter]} tokens, {bytes_text(moved['bytes'])}{rate}"
    return rows


def _persisted(persisted: Persisted) -> str:
    parts = [f"{persisted['stored']} pages in {seconds_text(persisted['seconds'])}"]
    if persisted["remaining"]:
        parts.append(f"{persisted['remaining']} pages left behind")
    if persisted["dropped"]:
        parts.append(f"given up: {_by_reason(persisted['dropped'], 'pages')}")
    return "; ".join([*parts, persisted["message"]] if persisted["message"] else parts)


def _reused(summary: Mapping[str, Any]) -> str:
    stored, prompt = summary["cached_tokens"]["storage"], summary["prompt_tokens"]
    if not stored:
        stored = summary["cache"]["storage_written_tokens"]
        return "nothing from storage" + (f"; this run handed it {stored} tokens" if stored else "")
    # What never left memory in this run can only have been stored by another one.
    kept = summary["cache"]["host_evicted_tokens"] == 0 and not summary["cache"]["dropped"]
    return f"{stored} of {prompt} prompt tokens came from storage" + (", where earlier runs had left them" if kept else "")


def _by_reason(counts: Mapping[str, int], unit: str) -> str:
    return "; ".join(f"{n} {unit}: {reason}" for reason, n in counts.items())


def tiers_text(tiers: Mapping[str, TierSize]) -> str:
    """`L1 44 pages (30.9 MiB), L2 264 pages (185.6 MiB)`."""
    return ", ".join(tier_text(tier, size) for tier, size in tiers.items())


def tier_text(tier: str, size: TierSize) -> str:
    """`L1 44 pages (30.9 MiB)`; with several components `L1 44 full + 20 swa (30.9 MiB)`."""
    units = size["units"]
    text = " + ".join(f"{n} {name}" for name, n in units.items()) if len(units) > 1 else f"{size['pages']} pages"
    return f"{LEVELS[tier]} {text} ({bytes_text(size['bytes'])})"


def cached_text(result: RequestResult) -> str:
    """`400 of 418 prompt tokens cached (device 336, host 64)`; tiers that gave nothing are left out."""
    tiers = ", ".join(f"{tier} {n}" for tier, n in result.cached_tokens.items() if n)
    return f"{result.cached} of {result.prompt_tokens} prompt tokens cached" + (f" ({tiers})" if tiers else "")


def printable(text: str) -> str:
    """`text` without what would move a terminal's cursor or change its colours."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def bytes_text(n: float) -> str:
    """With a binary unit: `185.6 MiB`."""
    for unit in ("B", "KiB", "MiB"):
        if n < 1024:
            return f"{n:.0f} B" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1024
    return f"{n:.1f} GiB"


def seconds_text(value: float | None) -> str:
    """`790 ms`, `22.31 s`, or `-` where there is none."""
    if value is None:
        return "-"
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.2f} s"


def _beginning(result: RequestResult) -> Text:
    # Answers and errors are data: shown as they are, never read as markup.
    text = printable(" ".join((result.error or result.text).split()))
    shown = text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
    return Text(shown, style="red" if result.error else "", no_wrap=True, overflow="ellipsis")
