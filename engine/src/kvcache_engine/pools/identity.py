"""How a pool's identity is written: every part with its length in front, so that no two lists of parts give the same bytes."""

from collections.abc import Sequence


def framed(*parts: str) -> bytes:
    """The parts in UTF-8, each after its length in four bytes."""
    encoded = [part.encode() for part in parts]
    return b"".join(len(part).to_bytes(4, "little") + part for part in encoded)


def layers_text(numbers: Sequence[int]) -> str:
    """`layers 0:30` for a run of layers, `layers 5,11,17` for others; the numbers are in ascending order."""
    first, last = numbers[0], numbers[-1] + 1
    if list(numbers) == list(range(first, last)):
        return f"layers {first}:{last}"
    return f"layers {','.join(map(str, numbers))}"
