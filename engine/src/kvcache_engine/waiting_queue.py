"""The requests that wait to be admitted, and what storage is asked to bring for them meanwhile (L3 -> L2).

A fetch is started when a request is queued, so that it runs while the ones before are served. Who waits for storage holds up
nobody: the next request that is ready goes first. The queue keeps no pages, and it knows neither batches nor the device.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import final

from kvcache_core.contracts.cache import BasePrefixCache
from kvcache_core.contracts.locks import Refused, Ticket
from kvcache_engine.request import Request


@final
@dataclass(frozen=True, slots=True)
class _Fetch:
    """`ticket`: None where the cache had too much to do to start. `until`: when the request no longer waits for it."""

    ticket: Ticket | None
    until: float | None


@final
class WaitingQueue:
    """`fetch_timeout`: seconds that a request waits for storage once its turn has come, counted from the start of the fetch;
    None: until the cache has an answer, which it has, since its calls into a storage have deadlines. `clock` gives seconds.

    `agree`: that of the cache. Each rank has a clock of its own, and who is admitted, and how often a refused fetch is tried
    again, must be the same on all of them: a wait ends when it has ended on every rank.
    """

    def __init__(
        self,
        cache: BasePrefixCache,
        fetch_timeout: float | None,
        clock: Callable[[], float],
        agree: Callable[[Sequence[int]], Sequence[int]] = tuple,
    ) -> None:
        self._cache = cache
        self._fetch_timeout = fetch_timeout
        self._clock = clock
        self._agree = agree
        self._requests: deque[Request] = deque()
        self._fetches: dict[Request, _Fetch] = {}  # of the requests above, while they are under way

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    @property
    def fetching(self) -> int:
        """Requests for which storage is being read."""
        return len(self._fetches)

    def add(self, request: Request) -> None:
        """Queue a new request, and have fetched what storage has of its prompt."""
        self._requests.append(request)
        self._fetch(request, self._deadline())

    def put_back(self, request: Request) -> None:
        """Queue a preempted request before all others. Nothing is fetched: what it had was just given to the cache."""
        self._requests.appendleft(request)

    def ready(self) -> Request | None:
        """The first request that waits for no fetch, or not any longer; it stays queued."""
        self._try_again()
        first, waiting = None, dict[Request, _Fetch]()
        for request in self._requests:
            fetch = self._fetches.get(request)
            if fetch is None or (fetch.ticket is not None and fetch.ticket.done):
                first = request
                break
            waiting[request] = fetch
        overdue = self._overdue(waiting)
        if overdue is not None:
            self._give_up(overdue)
            return overdue
        if first is not None:
            self._delivered(first)
        return first

    def remove(self, request: Request) -> None:
        """Take out a request, for whatever reason; a fetch under way is no longer of interest."""
        self._requests.remove(request)
        self._give_up(request)

    def _deadline(self) -> float | None:
        return None if self._fetch_timeout is None else self._clock() + self._fetch_timeout

    def _fetch(self, request: Request, until: float | None) -> None:
        # The last token is always computed, so its page is of no use.
        ticket = self._cache.prefetch(request.spec.prompt_ids[:-1], request.spec.extra_key)
        if ticket is Refused.BUSY:
            self._fetches[request] = _Fetch(None, until)
        elif not isinstance(ticket, Refused):
            self._fetches[request] = _Fetch(ticket, until)

    def _try_again(self) -> None:
        """Start the first fetch that could not be started. The ones behind it would find the cache as busy."""
        for request in self._requests:
            fetch = self._fetches.get(request)
            if fetch is not None and fetch.ticket is None:
                del self._fetches[request]
                self._fetch(request, self._deadline())
                again = self._fetches.get(request)
                if again is not None and again.ticket is None:
                    self._fetches[request] = fetch  # with the deadline it had
                return

    def _overdue(self, waiting: Mapping[Request, _Fetch]) -> Request | None:
        """The first of them that no longer waits."""
        ends = {request: fetch.until for request, fetch in waiting.items() if fetch.until is not None}
        if not ends:
            return None
        now = self._clock()
        over = self._agree([int(now >= until) for until in ends.values()])
        return next((request for request, is_over in zip(ends, over, strict=True) if is_over), None)

    def _delivered(self, request: Request) -> None:
        fetch = self._fetches.pop(request, None)
        if fetch is not None:
            assert fetch.ticket is not None
            request.fetched = fetch.ticket.span

    def _give_up(self, request: Request) -> None:
        fetch = self._fetches.pop(request, None)
        if fetch is not None and fetch.ticket is not None:
            fetch.ticket.cancel()
