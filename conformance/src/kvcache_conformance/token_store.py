"""A host without a model: pages hold the tokens themselves, and the next token is a hash of the prefix read back through them.

A wrong, stale or foreign page changes the hash and with it every later token, so comparing outputs compares pages. It does not
know any scheduler or cache; it takes rows of ids, a start and page tables.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Protocol, final

import numpy as np
import numpy.typing as npt


class TokenRow(Protocol):
    """New tokens of one request, as a scheduler hands them to its model."""

    @property
    def ids(self) -> npt.NDArray[np.int32]: ...
    @property
    def start(self) -> int: ...
    @property
    def tables(self) -> Mapping[str, npt.NDArray[np.int32]]: ...


def next_token(prefix: npt.NDArray[np.int32], vocab: int) -> int:
    """The token after `prefix`: a hash, so that equal prefixes and nothing else give equal answers."""
    digest = hashlib.sha256(np.ascontiguousarray(prefix, np.int32).tobytes()).digest()
    return int.from_bytes(digest[:8], "little") % vocab


def answer(prompt: npt.NDArray[np.int32], n: int, vocab: int, end_tokens: Sequence[int] = ()) -> list[int]:
    """What a request alone in the world would be answered: at most `n` tokens, up to and with an end token."""
    ids = list(prompt)
    out: list[int] = []
    while len(out) < n and not (out and out[-1] in end_tokens):
        out.append(next_token(np.asarray(ids, np.int32), vocab))
        ids.append(out[-1])
    return out


@final
class TokenStore:
    """Executes rows over pages of tokens for one component. `total` pages and the dummy page 0, which must never be written."""

    def __init__(self, component: str, total: int, page_size: int, vocab: int) -> None:
        self._component = component
        self._page_size = page_size
        self._vocab = vocab
        self._pages = np.full((total + 1, page_size), -1, np.int32)
        self.tokens_computed = 0
        self.idle_steps = 0

    def execute(self, rows: Sequence[TokenRow]) -> list[int]:
        """Write each row's tokens to its pages, then draw a token from the whole prefix as the pages have it.

        Raises ValueError when a token falls on the dummy page or outside the table: a scheduler forgot to make room.
        """
        for row in rows:
            positions = np.arange(row.start, row.start + len(row.ids))
            table = row.tables[self._component]
            if len(row.ids) == 0 or positions[-1] >= len(table) * self._page_size:
                raise ValueError(f"{len(row.ids)} tokens at {row.start} do not fit a table of {len(table)} pages")
            pages = table[positions // self._page_size]
            if not pages.all():
                raise ValueError(f"tokens at {row.start} fall on the dummy page")
            self._pages[pages, positions % self._page_size] = row.ids
            self.tokens_computed += len(row.ids)
        return [next_token(self.read(row.tables[self._component], row.start + len(row.ids)), self._vocab) for row in rows]

    def idle(self) -> None:
        self.idle_steps += 1

    def put(self, pages: npt.NDArray[np.int32], tokens: npt.NDArray[np.int32]) -> None:
        """What a load does: fill whole pages with `tokens`."""
        self._pages[pages] = tokens.reshape(-1, self._page_size)

    def read(self, table: npt.NDArray[np.int32], n: int) -> npt.NDArray[np.int32]:
        """The first `n` tokens that a page table leads to."""
        return self._pages[table].reshape(-1)[:n]
