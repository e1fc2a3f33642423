"""Sizes and times as people write and read them, on the command line of `kvcache storage`."""

import argparse
import math
import re
from typing import Final

_SIZES: Final = {"": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_TIMES: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def size(text: str) -> int:
    """`10GiB` in bytes; for argparse."""
    found = re.fullmatch(r"(\d+) ?(|KiB|MiB|GiB|TiB)", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"a number of bytes, or a whole number with KiB, MiB, GiB or TiB, not {text!r}")
    return int(found[1]) * _SIZES[found[2]]


def duration(text: str) -> float:
    """`7d` in seconds; for argparse."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"a number with s, m, h or d such as 12h or 7d, not {text!r}")
    return float(found[1]) * _TIMES[found[2]]


def size_text(nbytes: int) -> str:
    """Three digits are enough to read."""
    if nbytes < 1024:
        return f"{nbytes} B"
    power = min(int(math.log2(nbytes) // 10), 4)
    return f"{_digits(nbytes / 2 ** (10 * power))} {list(_SIZES)[power]}"


def _digits(number: float) -> str:
    """Three, and never as 1e+03: 1,000 to 1,023 of a unit are not yet one of the next."""
    return f"{number:.3g}" if number < 999.5 else f"{number:.0f}"


def count_text(n: int, noun: str) -> str:
    """`1 page`, `1,000 pages`."""
    return f"{n:,} {noun}" + ("" if n == 1 else "s")


def duration_text(seconds: float) -> str:
    """In the largest unit of which there is at least one."""
    unit = next((name for name in reversed(_TIMES) if seconds >= _TIMES[name]), "s")
    return f"{_digits(max(0.0, seconds) / _TIMES[unit])} {unit}"


def table(rows: list[list[str]], right: set[int]) -> str:
    """Columns as wide as their widest cell, two spaces between them; those in `right` are aligned to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    return "\n".join(line.rstrip() for line in lines)
