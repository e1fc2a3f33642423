"""A state machine that drives a prefix cache as schedulers do, and counts what it reached.

The rules are composite: whole requests in chunks, two requests that race over one prefix, a branch inside a locked prefix,
eviction and insertion while another request decodes, matches that went stale. Independent random calls hardly ever line up to
such situations, and a machine that never reaches a state proves nothing about it; so every situation is an event, and whoever
runs the machine asserts the counts. Tokens are prefix-biased: a cut of an earlier sequence, then something new.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, cast

import hypothesis
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, run_state_machine_as_test

from kvcache_conformance.machine_rules import MachineRules
from kvcache_conformance.machine_steps import MAX_TOKENS, WorldFactory

EVENTS = (
    "hit",
    "miss",
    "short of pages",
    "decoded",
    "finished",
    "aborted in prefill",
    "aborted after prefill",
    "preempted",
    "resumed with a hit",
    "race with duplicates",
    "branch inside a lock",
    "partial lock",
    "evicted",
    "evicted under locks",
    "evicted while another decodes",
    "everything pinned",
    "stale match refused",
    "match survived",
    "reset",
    "reset refused",
)
"""Situations that a run must have reached before its silence means anything; "released early" too, with windows or states."""


def not_reached(events: Counter[str], wanted: Iterable[str] = EVENTS, at_least: int = 1) -> list[str]:
    """The situations that a run came into less often than `at_least` times. A test asserts that there are none."""
    return [event for event in wanted if events[event] < at_least]


class PrefixCacheMachine(MachineRules):
    """One tier."""

    @initialize(page_size=st.sampled_from([1, 2, 4]), room=st.integers(MAX_TOKENS, 3 * MAX_TOKENS))
    def choose_pools(self, page_size: int, room: int) -> None:
        self.build(page_size, room // page_size)

    def drain(self) -> None:
        for name, allocator in self.world.host.allocators.items():
            self.world.evict(name, allocator.total)
        self.world.verify()
        for name, allocator in self.world.host.allocators.items():
            assert allocator.n_free == allocator.total, f"{allocator.total - allocator.n_free} pages of {name!r} are lost"

    def end_waiting(self) -> None:
        pass


def run_machine(factory: WorldFactory, *, examples: int, steps: int, seed: int, shrink: bool = True) -> Counter[str]:
    """Run the machine and return how often each situation was reached. The same arguments give the same run
    in a process that has imported the same modules: hypothesis tries constants that it finds in them.

    `shrink=False` saves the time to simplify a failure when only the fact of it matters.

    Raises:
        AssertionError, KVCacheError: the cache broke its contract; with `shrink`, hypothesis prints the shortest way there.
    """
    events: Counter[str] = Counter()
    drive(lambda: PrefixCacheMachine(factory, events), examples=examples, steps=steps, seed=seed, shrink=shrink)
    return events


def drive(make: Callable[[], RuleBasedStateMachine], *, examples: int, steps: int, seed: int, shrink: bool = True) -> None:
    """Run any state machine; a fixed seed, no database, no time limit."""
    phases = [Phase.generate, Phase.shrink] if shrink else [Phase.generate]

    @hypothesis.seed(seed)
    def machine() -> RuleBasedStateMachine:
        return make()

    profile = settings(
        max_examples=examples,
        stateful_step_count=steps,
        phases=phases,
        database=None,
        deadline=None,
        derandomize=False,
        suppress_health_check=tuple(cast("Iterable[HealthCheck]", HealthCheck)),
        report_multiple_bugs=False,
    )
    run_state_machine_as_test(cast(Any, machine), settings=profile)
