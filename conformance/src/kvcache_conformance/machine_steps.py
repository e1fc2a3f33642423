"""The steps from which the rules of `PrefixCacheMachine` are composed, and what must hold after each rule and at the end.

It knows no rule and draws nothing.
"""

import sys
from collections import Counter
from collections.abc import Callable

from hypothesis.stateful import RuleBasedStateMachine, invariant

from kvcache_conformance.checked_cache import CheckedCache
from kvcache_conformance.claims import Held, Match
from kvcache_conformance.request_model import RequestModel
from kvcache_core.contracts.tokens import ExtraKey

WorldFactory = Callable[[int, int], CheckedCache]
"""(page_size, total) -> a new cache in its surroundings, such as `CacheKit.world` of a test class."""

MAX_TOKENS = 24
MAX_RUNNING = 3
RARELY = 3

Draft = tuple[int, int, list[int]]
"""Which earlier sequence, where it is cut, and what follows."""


class MachineSteps(RuleBasedStateMachine):
    """One cache, some running requests, some locks and matches held for no reason. `events` is shared by all examples."""

    def __init__(self, factory: WorldFactory, events: Counter[str]) -> None:
        super().__init__()
        self.factory = factory
        self.events = events
        self.known: list[list[int]] = [[]]
        self.requests: list[RequestModel] = []
        self.locks: list[Held] = []
        self.matches: list[Match] = []
        self._world: CheckedCache | None = None

    @property
    def world(self) -> CheckedCache:
        """The cache under test."""
        assert self._world is not None
        return self._world

    def build(self, page_size: int, total: int) -> None:
        """The first step of every example."""
        self._world = self.factory(page_size, total)

    @invariant()
    def everything_is_right(self) -> None:
        # Invariants are checked before the first rule, too.
        if self._world is not None:
            self._world.verify()

    def teardown(self) -> None:
        """With everybody gone, all pages can be had back. Not after a failure, which it would only hide."""
        if sys.exc_info()[0] is not None or self._world is None:
            return
        self.let_go()
        self.drain()

    def drain(self) -> None:
        """For a machine to say: with everybody gone, evict everything, and all is free again."""
        raise NotImplementedError

    def end_waiting(self) -> None:
        """For a machine to say: end what waits for transfers."""
        raise NotImplementedError

    def let_go(self) -> None:
        """End all requests and locks; matches stay."""
        self.end_waiting()
        for request in self.requests:
            request.finish()
        for held in self.locks:
            self.world.unlock(held)
        self.requests.clear()
        self.locks.clear()

    def sequence(self, draft: Draft) -> list[int]:
        """A cut of something known and its continuation, which is known from now on."""
        base, cut, more = draft
        sequence = [*self.known[base % len(self.known)][:cut], *more][:MAX_TOKENS]
        self.known = [*self.known[-11:], sequence]
        return sequence

    def admit(self, prompt: list[int], extra_key: ExtraKey) -> RequestModel | None:
        """A running request, or None where there is no room."""
        request = RequestModel(self.world, prompt, extra_key)
        if not request.admit():
            self.events["short of pages"] += 1
            return None
        self.events["hit" if request.hits else "miss"] += 1
        return request

    def chunk(self, request: RequestModel, n: int, *, offer: bool = True) -> bool:
        """One chunk of a prefill, and what it computed is offered to the cache. False where there is no room."""
        if not request.compute(n):
            self.events["short of pages"] += 1
            return False
        if offer:
            request.chunk_done()
        return True

    def prefill(self, request: RequestModel) -> None:
        """All of it, as far as there is room."""
        while request.to_compute and self.chunk(request, 5):
            pass

    def decode(self, request: RequestModel, token: int) -> bool:
        """Compute one token after the prompt; a new one, unless the last is still to be computed."""
        if not request.to_compute:
            request.append(token)
        if not request.compute(1):
            self.events["short of pages"] += 1
            return False
        self.events["decoded"] += 1
        return True

    def end_request(self, request: RequestModel, fate: str) -> None:
        """`finish`, `abort`, or `preempt`: then it runs once more and finishes."""
        in_prefill = bool(request.to_compute)
        if fate == "abort":
            request.abort()
            self.events["aborted in prefill" if in_prefill else "aborted after prefill"] += 1
            return
        request.finish()
        self.known = [*self.known[-11:], list(request.tokens)]
        if fate == "finish":
            self.events["finished"] += 1
            return
        self.events["preempted"] += 1
        self.world.verify()
        hits = request.hits
        if request.admit():
            self.events["resumed with a hit"] += request.hits > hits
            self.prefill(request)
            request.finish()

    def try_lock(self, match: Match) -> None:
        """Lock a match that may be stale, and release it."""
        held = self.world.lock(match)
        if held is None:
            self.events["stale match refused"] += 1
        else:
            self.events["match survived"] += held.length > 0
            self.world.unlock(held)

    def early(self, held: Held) -> list[str]:
        """The components of a lock that may be released before it."""
        geometries = self.world.host.geometries
        return [name for name in sorted(held.parts) if not geometries[name].prefix_closed and held.length]
