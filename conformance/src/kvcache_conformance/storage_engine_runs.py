"""An engine serves prompts while the server of its storage hangs, goes, comes back, is full, or loses a part: every answer is
right, and the summary says what happened.

Each backend's tests bring the engine, as a function from a configuration to a report, and what is done to their servers; the
workload, what has to be true and what is reported are here. It knows the core's configuration, no engine and no backend.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Any, Final, Literal, Protocol, final

from kvcache_core.config.model import CacheConfig
from kvcache_core.contracts.cache import BasePrefixCache
from kvcache_core.errors import StorageError

PAGE: Final = 16
DEVICE_TOKENS: Final = 20 * PAGE
WITHOUT_REUSE: Final = CacheConfig(cache_type="chunk_cache", page_size=PAGE)
"""For the engine whose answers are right, because it reuses nothing."""

Stage = Literal["before", "gone", "back"]

_NAMES: Final = ("ada", "bruno", "chiara", "dmitri", "emma", "farid")
_SAID: Final = ("what is known of tides, of the moon and of ferries?", "lamps?", "fog?", "maps?", "bells?", "gulls?")
_ANSWER: Final = 4
_GOES_AFTER: Final = 9
_LEFT_ALONE_FOR: Final = 3
_COMES_BACK_AFTER: Final = 22
_LONG: Final = 60.0


class Answer(Protocol):
    """What is reported of a request."""

    @property
    def id(self) -> str: ...
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def cached_tokens(self) -> Mapping[str, int]: ...
    @property
    def computed_tokens(self) -> int: ...
    @property
    def ttft_s(self) -> float | None: ...
    @property
    def output_tokens(self) -> Sequence[int]: ...
    @property
    def error(self) -> str | None: ...


class Report(Protocol):
    """What is reported of a run."""

    @property
    def requests(self) -> Sequence[Answer]: ...
    @property
    def summary(self) -> Mapping[str, Any]: ...


class Checked(Protocol):
    """The part of a scheduler that is needed here."""

    def check_integrity(self) -> None: ...


class RunningEngine(Protocol):
    """The part of an engine that is needed here."""

    @property
    def cache(self) -> BasePrefixCache: ...
    @property
    def scheduler(self) -> Checked: ...


@final
class Outage:
    """The view of one run: it does something to a server when some requests are answered, and undoes it when the storage has been
    left alone for some more. It remembers how the storage was called, and which requests were answered when."""

    def __init__(
        self, go: Callable[[], object] | None = None, come_back: Callable[[], object] | None = None, *, opens: bool = True
    ) -> None:
        """`opens`: whether the breaker has to open; else `come_back` is called after a number of requests."""
        self.words: list[str] = []
        self.answered: dict[Stage, list[Answer]] = {"before": [], "gone": [], "back": []}
        self._stage: Stage = "before"
        self._go = go
        self._come_back = come_back
        self._opens = opens
        self._done = 0
        self._open_since: int | None = None
        self._engine: RunningEngine | None = None

    def ready(self, engine: RunningEngine, expected: int) -> None:
        self._engine = engine

    def finished(self, result: Answer, done: int) -> None:
        self.answered[self._stage].append(result)
        self._done = done
        if self._stage == "before" and self._go is not None and done >= _GOES_AFTER:
            self._go()
            self._stage = "gone"

    def working(self, state: object) -> None:
        """Between two steps: others run and wait meanwhile."""
        assert self._engine is not None
        self._engine.scheduler.check_integrity()
        word = self._look()
        if word == "open" and self._open_since is None:
            self._open_since = self._done
        if self._stage != "gone" or self._come_back is None:
            return
        if not self._opens:
            over = self._done >= _COMES_BACK_AFTER
        else:
            over = self._open_since is not None and self._done >= self._open_since + _LEFT_ALONE_FOR
        if over:
            self._come_back()
            self._stage = "back"
            self._until_ok()

    def persisting(self, stored: int, remaining: int) -> None:
        self._look()

    def _look(self) -> str:
        assert self._engine is not None
        word = self._engine.cache.counters.storage_state.partition(":")[0]
        if word and self.words[-1:] != [word]:
            self.words.append(word)
        return word

    def _until_ok(self) -> None:
        """With an engine that does nothing else, so that requests are left for when all is well again."""
        assert self._engine is not None
        end = monotonic() + _LONG
        while self._look() != "ok":
            assert monotonic() < end, f"the storage is '{self._engine.cache.counters.storage_state}', and should be ok again"
            self._engine.cache.persist(0.01)


Serve = Callable[[CacheConfig, Outage], Report]
"""Serves the prompts of `write_prompts` with an engine of DEVICE_TOKENS tokens and at most two running requests, over a cache
that is built from the configuration; tells the view what goes on, and closes the cache."""


@final
class OutageRun:
    """What came of a run, which was right."""

    def __init__(self, report: Report, view: Outage) -> None:
        self.summary = report.summary
        self.words = tuple(view.words)
        self._view = view

    def answers(self, stage: Stage) -> int:
        """Requests that were answered before the server went, while it was gone, or after it came back."""
        return len(self._view.answered[stage])

    def hits(self, stage: Stage) -> int:
        """Tokens that came from storage for those."""
        return sum(answer.cached_tokens["storage"] for answer in self._view.answered[stage])

    @property
    def state(self) -> str:
        """How the storage is called in the summary."""
        return self.summary["cache"]["storage_state"]

    @property
    def misses(self) -> Mapping[str, int]:
        return self.summary["cache"]["misses"]


@final
class EngineRuns:
    """One workload, served again and again: over storages, and at first without any, which says what the answers are."""

    def __init__(self, serve: Serve) -> None:
        self._serve = serve
        self._answers = {answer.id: list(answer.output_tokens) for answer in serve(WITHOUT_REUSE, Outage()).requests}

    def run(self, storage: Mapping[str, Any], view: Outage, **hicache: Any) -> OutageRun:
        """One run over `storage`, the section of a configuration. Raises AssertionError: a request failed, has another answer
        than without reuse or the wrong account, or waited for ever; or a page was wrong."""
        report = self._started(_config(storage, hicache), view)
        assert {answer.id for answer in report.requests} == set(self._answers)
        for answer in report.requests:
            assert answer.error is None, f"{answer.id}: {answer.error}"
            assert list(answer.output_tokens) == self._answers[answer.id], f"{answer.id}: not the right tokens"
            assert sum(answer.cached_tokens.values()) + answer.computed_tokens == answer.prompt_tokens
            assert answer.ttft_s is not None and answer.ttft_s < _LONG, f"{answer.id} waited {answer.ttft_s} s"
        run = OutageRun(report, view)
        assert not any(reason.startswith("bad page") for reason in run.misses), run.misses
        return run

    def _started(self, config: CacheConfig, view: Outage) -> Report:
        """The deadlines of these runs are short, for servers that hang; a busy machine may miss one while the storage is opened,
        which is an error at the start, and nothing has happened yet."""
        end = monotonic() + _LONG
        while True:
            try:
                return self._serve(config, view)
            except StorageError:
                if monotonic() > end:
                    raise

    def check_outage(
        self,
        storage: Mapping[str, Any],
        go: Callable[[], object],
        come_back: Callable[[], object] | None,
        *,
        opens: bool = True,
        keeps: bool = True,
        **hicache: Any,
    ) -> OutageRun:
        """A first run fills the store. In a second one something happens to a server and, if `come_back` is given, is over some
        time later. With `opens` the breaker has to open then, and to close again once it is over; else it must not. Without
        `keeps` the store comes back empty: then two further runs show that it is filled and read as before.

        Raises AssertionError.
        """
        self.run(storage, Outage(), **hicache)
        run = self.run(storage, Outage(go, come_back, opens=opens), **hicache)
        seen = f"storage was called {' -> '.join(run.words)}; misses: {run.misses}"
        assert run.hits("before") > 0, f"nothing came from storage while it was well: {seen}"
        assert run.answers("gone") > 3, seen
        if opens:
            assert "open" in run.words, seen
            assert run.misses or run.summary["cache"]["postponed"], f"the summary does not say what happened: {seen}"
        else:
            assert set(run.words) == {"ok"}, seen
            assert run.hits("gone") > 0, f"nothing came from the part that is left: {seen}"
        if come_back is not None:
            assert run.words[-1] == "ok" == run.state, f"{run.state}; {seen}"
            assert run.summary["persisted"]["remaining"] == 0, run.summary["persisted"]
            assert run.answers("back") > 3, seen
            if not keeps:
                self.run(storage, Outage(), **hicache)
            back = run.hits("back") if keeps else self.run(storage, Outage(), **hicache).hits("before")
            assert back > 0, f"nothing came from storage once it was back: {seen}"
        elif opens:
            assert run.state.partition(":")[0] in ("open", "retrying"), run.state
        return run


def write_prompts(path: Path) -> Path:
    """Six conversations of six turns side by side. What is asked of storage is asked when a turn begins, so a turn after another
    meets it as it is then. Gives `path`."""
    lines = [
        {
            "id": name,
            "messages": [{"role": "user", "content": f"{name} {text}"} for text in _SAID],
            "max_tokens": _ANSWER,
        }
        for name in _NAMES
    ]
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return path


def _config(storage: Mapping[str, Any], hicache: Mapping[str, Any]) -> CacheConfig:
    section = {
        "storage": dict(storage),
        "ratio": 8.0,
        "backup_on": "insert",
        "persist_on": "insert",
        "prefetch_threshold": PAGE,
        "prefetch_timeout": 1.0,
        "storage_timeout": 2.0,
        "persist_timeout": 10.0,
    }
    return CacheConfig.model_validate(
        {"cache_type": "unified_radix_cache", "page_size": PAGE, "hicache": section | dict(hicache)}
    )
