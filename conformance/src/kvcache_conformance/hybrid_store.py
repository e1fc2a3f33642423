"""A host without a model for any set of components: pages hold tokens, slots hold a digest of all tokens so far.

The next token is a hash of what is read back through every component: the whole prefix from the pages of full attention, the last
tokens from those of a window, the state from its slot. A page or a state that is wrong, stale, foreign or of another length
changes it and every later token. It does not know any scheduler or cache.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, final

import numpy as np
import numpy.typing as npt

STATE_BYTES: Final = 16


class Slots(Protocol):
    """Where a row's state is read from and written to."""

    @property
    def source(self) -> int: ...
    @property
    def target(self) -> int: ...


class HybridRow(Protocol):
    """New tokens of one request, as a scheduler hands them to its model."""

    @property
    def ids(self) -> npt.NDArray[np.int32]: ...
    @property
    def start(self) -> int: ...
    @property
    def tables(self) -> Mapping[str, npt.NDArray[np.int32]]: ...
    @property
    def states(self) -> Mapping[str, Slots]: ...


@final
@dataclass(frozen=True, slots=True)
class HybridShape:
    """`windows`: by component with pages, the tokens that are seen, own position included; None sees everything. `states`: names
    of components with states."""

    windows: Mapping[str, int | None]
    states: Sequence[str] = ()


def advanced(state: bytes, ids: npt.NDArray[np.int32]) -> bytes:
    """The state after `ids`; b"" is the one before the first token."""
    for token in ids.tolist():
        state = hashlib.blake2b(state + token.to_bytes(4, "little"), digest_size=STATE_BYTES).digest()
    return state


def hybrid_answer(shape: HybridShape, prompt: npt.NDArray[np.int32], n: int, vocab: int) -> list[int]:
    """The `n` tokens that a request alone in the world would be answered."""
    ids, state = np.asarray(prompt, np.int32), advanced(b"", prompt)
    out: list[int] = []
    while len(out) < n:
        seen = [ids if window is None else ids[-window:] for window in shape.windows.values()]
        out.append(_hashed([*(part.tobytes() for part in seen), *(state for _ in shape.states)], vocab))
        last = np.array(out[-1:], np.int32)
        ids, state = np.concatenate([ids, last]), advanced(state, last)
    return out


@final
class HybridStore:
    """Executes rows. `totals`: pages or slots by component, besides the dummy 0, which must never be read or written."""

    def __init__(self, shape: HybridShape, totals: Mapping[str, int], page_size: int, vocab: int) -> None:
        self._shape = shape
        self._page_size = page_size
        self._vocab = vocab
        self._pages = {name: np.full((totals[name] + 1, page_size), -1, np.int32) for name in shape.windows}
        self._slots: dict[str, list[bytes | None]] = {name: [None] * (totals[name] + 1) for name in shape.states}
        self.tokens_computed = 0

    def execute(self, rows: Sequence[HybridRow]) -> list[int]:
        """All rows read before any of them writes a state, as in a batched forward.

        Raises ValueError for a page or a slot that a row needs and does not have, and for two rows that write the same slot.
        """
        states = [{name: self._state(row, name) for name in self._shape.states} for row in rows]
        for name in self._shape.states:
            targets = [row.states[name].target for row in rows]
            if 0 in targets or len(set(targets)) != len(targets):
                raise ValueError(f"states of {name!r} are written to {targets}")
            for target, state in zip(targets, states, strict=True):
                self._slots[name][target] = state[name]
        tokens: list[int] = []
        for row, state in zip(rows, states, strict=True):
            end = row.start + len(row.ids)
            parts: list[bytes] = []
            for name, window in self._shape.windows.items():
                self._write(row, name)
                first = 0 if window is None else max(0, row.start - window + 1)
                read = self._read(row.tables[name], first, end, name)
                parts.append((read if window is None else read[-window:]).tobytes())
            parts += [state[name] for name in self._shape.states]
            tokens.append(_hashed(parts, self._vocab))
            self.tokens_computed += len(row.ids)
        return tokens

    def idle(self) -> None:
        """There is nothing to dispatch."""

    def _state(self, row: HybridRow, name: str) -> bytes:
        source = row.states[name].source
        state = self._slots[name][source] if row.start else b""
        if row.start and (not source or state is None):
            raise ValueError(f"a row goes on at {row.start} from the state of {name!r} in slot {source}, where there is none")
        assert state is not None
        return advanced(state, row.ids)

    def _write(self, row: HybridRow, name: str) -> None:
        positions = np.arange(row.start, row.start + len(row.ids))
        table = row.tables[name]
        if not len(row.ids) or positions[-1] >= len(table) * self._page_size or not table[positions // self._page_size].all():
            raise ValueError(f"{len(row.ids)} tokens at {row.start} have no pages of {name!r}")
        self._pages[name][table[positions // self._page_size], positions % self._page_size] = row.ids

    def _read(self, table: npt.NDArray[np.int32], first: int, end: int, name: str) -> npt.NDArray[np.int32]:
        begin = first // self._page_size
        pages = table[begin : -(-end // self._page_size)]
        if not pages.all():
            raise ValueError(f"a page of {name!r} in [{first}, {end}) is missing")
        return self._pages[name][pages].reshape(-1)[first - begin * self._page_size : end - begin * self._page_size]


def _hashed(parts: Sequence[bytes], vocab: int) -> int:
    whole = hashlib.blake2b(digest_size=8)
    for part in parts:
        whole.update(len(part).to_bytes(8, "little") + part)
    return int.from_bytes(whole.digest(), "little") % vocab
