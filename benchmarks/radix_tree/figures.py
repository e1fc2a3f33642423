"""What is reported: one line for each figure with its spread, its ratio to the peer and its target. It measures nothing."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Spread:
    """The median of the rounds and their quartiles."""

    median: float
    low: float
    high: float
    rounds: int

    def __str__(self) -> str:
        return f"{_short(self.median)} ({_short(self.low)}-{_short(self.high)})"


def spread(values: Sequence[float]) -> Spread:
    """Quartiles by linear interpolation between the rounds."""
    if len(values) == 1:
        return Spread(values[0], values[0], values[0], 1)
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(middle, low, high, len(values))


@dataclass(frozen=True)
class Figure:
    """`target`: the most that `ratio` may be, or `ours` where `absolute`."""

    name: str
    unit: str
    clock: str
    ours: Spread
    peer: Spread | None
    ratio: Spread | None
    target: float | None
    absolute: bool

    @property
    def verdict(self) -> str:
        if self.target is None:
            return ""
        value = self.ours if self.absolute else self.ratio
        if value is None:
            return "peer: not run"
        return "pass" if value.median <= self.target else "MISS"

    def cells(self) -> tuple[str, ...]:
        """The row of a table: name, clock, ours, peer, ratio, target, verdict."""
        target = "" if self.target is None else f"<= {self.target:g}{' ' + self.unit if self.absolute else ''}"
        peer = "not run" if self.peer is None else str(self.peer)
        return (
            f"{self.name} [{self.unit}]",
            self.clock,
            str(self.ours),
            peer,
            "-" if self.ratio is None else str(self.ratio),
            target,
            self.verdict,
        )

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"verdict": self.verdict}


HEADER = ("figure", "clock", "ours", "peer", "ours / peer", "target", "verdict")


def compare(
    name: str,
    ours: Sequence[float],
    peer: Sequence[float] | None,
    target: float | None = None,
    *,
    unit: str = "us",
    clock: str = "cpu",
    absolute: bool = False,
) -> Figure:
    """The ratio is taken round by round: both sides of a round ran one after the other."""
    ratio = None
    if peer is not None and all(peer):
        ratio = spread([mine / theirs for mine, theirs in zip(ours, peer, strict=True)])
    return Figure(name, unit, clock, spread(ours), None if peer is None else spread(peer), ratio, target, absolute)


def text_table(figures: Sequence[Figure]) -> str:
    rows = [HEADER, *(figure.cells() for figure in figures)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEADER))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)


def markdown_table(figures: Sequence[Figure]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in (HEADER, *(figure.cells() for figure in figures))]
    return "\n".join([lines[0], "|" + " --- |" * len(HEADER), *lines[1:]])


def markdown(title: str, about: Mapping[str, str], figures: Sequence[Figure], profiles: Mapping[str, Sequence[str]]) -> str:
    """The page of committed results."""
    parts = [f"# {title}", "", "Written by the benchmark; `benchmarks/README.md` says what is measured and how to read it.", ""]
    parts += [f"- {name}: {value}" for name, value in about.items()]
    parts += ["", markdown_table(figures), ""]
    parts += ["Medians of the rounds, with their quartiles in brackets. Ratios are taken round by round.", ""]
    if profiles:
        parts += ["## Where the time goes", ""]
        parts += ["Profiles of what missed its target (share of the time, calls, function).", ""]
    for name, lines in profiles.items():
        parts += [f"### {name}", "", "```", *lines, "```", ""]
    return "\n".join(parts)


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
