"""Who runs next: continuous batching, chunked prefill, admission by what is free and evictable, preemption on shortage.

A step decodes one token for every decoding request and prefills one chunk of the oldest prefilling one. It knows neither model
nor cache type: an `Executor` turns rows into tokens, a `KVManager` keeps pages, a `WaitingQueue` says who is ready. Wall-clock
time decides nothing but how long a request waits for storage.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, final

import numpy as np
import numpy.typing as npt

from kvcache_core.contracts.cache import BasePrefixCache
from kvcache_core.contracts.results import Indices
from kvcache_engine.endings import Endings
from kvcache_engine.kv_manager import Admission, KVManager
from kvcache_engine.limits import Limits
from kvcache_engine.request import FinishReason, Phase, Request, RequestSpec, Sampling
from kvcache_engine.state_slots import StateSlot
from kvcache_engine.waiting_queue import WaitingQueue

PAUSE = 0.0002
"""Seconds that a step waits in which nothing could be computed, since all that is under way are transfers: enough to leave the
processor to the threads that do them, and far less than a page takes."""


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """New tokens of one request: `ids` stand at positions `start`, `start + 1`, ...; `tables` map page ordinals to pages.
    `sampling` is None where the next token is known already (a chunk in the middle of a prompt). `states`: by recurrent
    component, where the state before `ids` is and where the one after them goes."""

    ids: npt.NDArray[np.int32]
    start: int
    tables: Mapping[str, Indices]
    sampling: Sampling | None
    states: Mapping[str, StateSlot] = field(default_factory=dict[str, StateSlot])


class Executor(Protocol):
    """Runs rows through the model: writes their KV and draws the token after each row's last one, where the row asks for it."""

    def execute(self, rows: Sequence[Row]) -> Sequence[int | None]: ...

    def idle(self) -> None:
        """Dispatch queued transfers although nothing is computed."""
        ...


@dataclass(slots=True)
class SchedulerStats:
    """Totals since the scheduler was made."""

    steps: int = 0
    """Steps done, idle ones included."""
    prefill_chunks: int = 0
    """Chunks of prompts that were computed."""
    decode_rows: int = 0
    """Tokens drawn in decoding: one a running request and step."""
    preemptions: int = 0
    """Times a running request gave up its pages to another and was queued again."""
    peak_running: int = 0
    """Most requests that ran in one step."""
    cache_seconds: float = 0.0
    """Seconds the owner thread spent in the cache and its page bookkeeping."""


@final
class Scheduler:
    """Owns the requests from `submit` until they are done. All methods are called on one thread."""

    def __init__(
        self,
        cache: BasePrefixCache,
        kv: KVManager,
        executor: Executor,
        limits: Limits,
        endings: Endings,
        fetch_timeout: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] | None = None,
        agree: Callable[[Sequence[int]], Sequence[int]] = tuple,
    ) -> None:
        """`fetch_timeout`, `agree`: as in `WaitingQueue`. `pause(seconds)` is called in steps that could compute nothing; by
        default the cache's."""
        self._cache = cache
        self._kv = kv
        self._executor = executor
        self._limits = limits
        self._endings = endings
        self._clock = clock
        self._pause = cache.pause if pause is None else pause
        self._waiting = WaitingQueue(cache, fetch_timeout, clock, agree)
        self._running: list[Request] = []  # in order of admission
        self._finished: list[Request] = []
        self.stats = SchedulerStats()

    @property
    def waiting(self) -> Sequence[Request]:
        return tuple(self._waiting)

    @property
    def fetching(self) -> int:
        """Waiting requests for which storage is being read."""
        return self._waiting.fetching

    @property
    def running(self) -> Sequence[Request]:
        """Admitted requests, oldest first; loading ones included."""
        return tuple(self._running)

    @property
    def busy(self) -> bool:
        return bool(self._waiting or self._running)

    def submit(self, spec: RequestSpec) -> Request:
        """Queue a request.

        Raises:
            RequestError: it can never be served; the text says why. Other requests are not affected.
        """
        self._limits.check(spec, self._kv.fits)
        started = self._clock()
        request = Request(spec, self._kv.new_pages(), submitted_at=started, states=self._kv.new_states())
        self._waiting.add(request)
        self._spend(started)
        return request

    def abort(self, request: Request) -> None:
        """End a request in whatever phase it is; no step reports it. Nothing happens if it is done."""
        if request.phase is Phase.DONE:
            return
        self._kv.abort(request)
        self._leave(request)
        self._end(request, "abort")

    def step(self) -> list[Request]:
        """Do one step; returns the requests that ended in it."""
        self.stats.steps += 1
        started = self._clock()
        self._cache.poll()
        for request in [r for r in self._running if r.phase is Phase.LOADING]:
            self._kv.finish_load(request)
        self._admit()
        decoding, prefilling = self._plan()
        self._spend(started)
        if decoding:
            self._decode(decoding)
        if prefilling is not None:
            self._prefill(prefilling)
        if not decoding and prefilling is None:
            self._executor.idle()
            if self.busy and not self._finished:
                self._pause(PAUSE)
        finished, self._finished = self._finished, []
        return finished

    def check_integrity(self) -> None:
        """Verify the cache and that every page has exactly one owner. Raises IntegrityError."""
        self._kv.check_integrity([*self._waiting, *self._running])

    def _admit(self) -> None:
        # One prompt is computed at a time. Whoever comes next is matched only when its turn has come, so that it finds what the
        # ones before it computed, and holds no pages while it waits. A load does not hold up the others.
        while len(self._running) < self._limits.max_running and not any(r.phase is Phase.PREFILL for r in self._running):
            request = self._waiting.ready()
            if request is None:
                break
            outcome = self._kv.admit(request, running=len(self._running))
            if outcome is Admission.SHORT:
                # Whoever comes later must not take the room either, or a large request would never have its turn.
                if self._running or self._kv.in_flight():
                    break
                # Nothing runs and nothing will come free: waiting would never end.
                self._waiting.remove(request)
                self._conclude(request, "error", "no room for its first chunk although no other request runs")
                continue
            self._waiting.remove(request)
            self._running.append(request)
        self.stats.peak_running = max(self.stats.peak_running, len(self._running))

    def _plan(self) -> tuple[list[Request], Request | None]:
        """Make room for this step's tokens, oldest request first; the newest ones are preempted for it."""
        decoding: list[Request] = []
        prefilling: Request | None = None
        for request in tuple(self._running):
            if request.phase is Phase.DECODE and self._make_room(request, request.computed + 1):
                decoding.append(request)
            elif request.phase is Phase.PREFILL and prefilling is None:  # loads may end together: then the oldest goes first
                end = self._kv.chunk_end(request)
                if self._make_room(request, end):
                    prefilling = request
        return decoding, prefilling

    def _make_room(self, request: Request, n_tokens: int) -> bool:
        """False if the request has to wait for a step, or had to give way itself."""
        while not self._kv.grow(request, n_tokens):
            if self._kv.in_flight() and not any(r.phase is Phase.LOADING for r in self._running):
                # Pages of loads that were given up: they come free by polling, so nobody has to give way for them.
                return False
            victim = self._running[-1]
            if victim is request and len(self._running) == 1:
                self._kv.abort(request)
                self._leave(request)
                self._conclude(request, "error", "out of device pages although no other request runs")
                return False
            self._preempt(victim)
            if victim is request:
                return False
        return True

    def _preempt(self, request: Request) -> None:
        if request.phase is Phase.LOADING:
            self._kv.abort(request)
        else:
            self._kv.finish(request)
        self._running.remove(request)
        self._waiting.put_back(request)
        request.phase = Phase.QUEUED
        request.computed = 0
        request.preemptions += 1
        self.stats.preemptions += 1

    def _decode(self, requests: Sequence[Request]) -> None:
        rows = [self._row(request, request.computed + 1) for request in requests]
        tokens = self._executor.execute(rows)
        started = self._clock()
        self.stats.decode_rows += len(rows)
        for request, token in zip(requests, tokens, strict=True):
            assert token is not None
            self._computed(request, request.computed + 1)
            self._kv.leave_behind(request)
            self._accept(request, token)
        self._spend(started)

    def _prefill(self, request: Request) -> None:
        end = self._kv.chunk_end(request)
        [token] = self._executor.execute([self._row(request, end)])
        started = self._clock()
        self.stats.prefill_chunks += 1
        self._computed(request, end)
        self._kv.commit_chunk(request)
        self._kv.leave_behind(request)
        if end == request.n_tokens:
            assert token is not None
            request.phase = Phase.DECODE
            self._accept(request, token)
        self._spend(started)

    def _row(self, request: Request, end: int) -> Row:
        tables = {name: request.pages.table(name) for name in request.pages.components}
        sampling = request.spec.sampling if end == request.n_tokens else None
        return Row(request.ids()[request.computed : end], request.computed, tables, sampling, request.states.row())

    def _computed(self, request: Request, end: int) -> None:
        request.count_computed(request.computed, end)
        request.computed = end
        self._kv.advance(request)

    def _accept(self, request: Request, token: int) -> None:
        request.output_ids.append(token)
        if request.first_token_at is None:
            request.first_token_at = self._clock()
        reason = self._endings.reason(request)
        if reason is not None:
            self._kv.finish(request)
            self._leave(request)
            self._conclude(request, reason)

    def _leave(self, request: Request) -> None:
        if request in self._running:
            self._running.remove(request)
        elif request in self._waiting:
            self._waiting.remove(request)

    def _end(self, request: Request, reason: FinishReason, error: str | None = None) -> None:
        request.phase = Phase.DONE
        request.finish_reason = reason
        request.error = error
        request.finished_at = self._clock()
        request.text = self._endings.text(request)

    def _conclude(self, request: Request, reason: FinishReason, error: str | None = None) -> None:
        """End a request that this step reports."""
        self._end(request, reason, error)
        self._finished.append(request)

    def _spend(self, started: float) -> None:
        self.stats.cache_seconds += self._clock() - started
