"""Sizes that compiled programs are made for. Every size a program depends on is rounded up to one of few values."""


def bucket(n: int, smallest: int = 1) -> int:
    """The smallest power of two that is at least `n` and at least `smallest` (itself a power of two)."""
    return max(smallest, 1 << max(0, n - 1).bit_length())


def buckets(most: int, smallest: int = 1) -> list[int]:
    """Every size that `bucket(n, smallest)` can give for n from 1 to `most`."""
    sizes = [smallest]
    while sizes[-1] < most:
        sizes.append(2 * sizes[-1])
    return sizes
