"""What the kit holds about calls it has checked, and the error with which it rejects one. Plain values, no behaviour."""

from dataclasses import dataclass

from kvcache_core.contracts.locks import Lock
from kvcache_core.contracts.results import MatchResult
from kvcache_core.contracts.tokens import ExtraKey


class Violation(AssertionError):
    """The cache broke its contract. The text says how."""


def require(condition: bool, text: str) -> None:
    """Raise Violation unless `condition`."""
    if not condition:
        raise Violation(text)


@dataclass(frozen=True, slots=True, eq=False)
class Match:
    """A checked match: the cache's `result`, what was asked, and how many losses of data the cache had seen by then."""

    result: MatchResult
    tokens: bytes
    extra_key: ExtraKey
    losses: int


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """A live receipt and what it covers. `parts`: components not released early."""

    lock: Lock
    tokens: bytes
    extra_key: ExtraKey
    length: int
    parts: set[str]
