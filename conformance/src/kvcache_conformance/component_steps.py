"""Composite steps of `TierMachine` that meet one component and not another: one goes while the rest stays, one copy fails alone.

It knows no rule and draws nothing.
"""

import numpy as np

from kvcache_conformance.machine_steps import MAX_TOKENS
from kvcache_conformance.tier_steps import Situation, TierSteps, Waiting

WINDOWS = ("smaller", "equal", "uneven", "double", "wide")
"""Windows as a page sees them: within it, exactly it, no multiple of it, two of it, three and a token."""


def window_of(kind: str, page_size: int) -> int:
    """In tokens. At page size 1, where nothing is smaller than a page, the smaller one equals it."""
    return {
        "smaller": max(1, page_size - 1),
        "equal": page_size,
        "uneven": 2 * page_size - page_size // 2,
        "double": 2 * page_size,
        "wide": 3 * page_size + 1,
    }[kind]


class ComponentSteps(TierSteps):
    """For any set of components; with one alone they are of little use."""

    @property
    def names(self) -> list[str]:
        """The components, by name."""
        return list(self.world.host.geometries)

    def lose_one_component(self, s: Situation) -> None:
        """A prefix loses some pages of one component, in one tier or in both; it is asked for, and computed again from there."""
        prompt, name = self.long(s), self.names[len(s.tails[1]) % len(self.names)]
        self.serve_whole(prompt, s.extra_key)
        if s.flag:
            self.tiered.settle()
        n = 1 + s.number % 5
        if s.other_flag:
            self.tiered.evict_host(name, n)
        self.world.evict(name, n)
        self.look_at(prompt, s)
        self.serve_here([*prompt[: MAX_TOKENS - 2], 2], s.extra_key)
        self.tiered.verify()
        self.serve_whole([*prompt, *s.tails[0]][:MAX_TOKENS], s.extra_key)

    def host_loses_one_component(self, s: Situation) -> None:
        """A prefix is in the host alone, and one component loses pages there; what is left is loaded, the rest computed."""
        prompt, name = self.long(s), self.names[len(s.tails[1]) % len(self.names)]
        self.put_in_host(prompt, s.extra_key)
        self.tiered.evict_host(name, 1 + s.number % 4)
        self.tiered.verify()
        self.look_at(prompt, s)
        self.serve_whole([*prompt, *s.tails[0]][:MAX_TOKENS], s.extra_key)

    def fail_one_component(self, s: Situation) -> None:
        """One load brings several components, and only some of the copies end well."""
        prompt, script = self.long(s), self.tiered.script
        self.put_in_host(prompt, s.extra_key)
        script.fates.clear()
        script.fates.extend([s.flag, not s.flag, s.other_flag])
        asked = self.ask([*prompt, 1], s.extra_key)
        script.fates.clear()
        if s.number % 3 == 0:
            self.world.evict(self.names[-1], 1_000)
        self.tiered.settle()
        self.tiered.verify()
        request = self.resume(asked) if isinstance(asked, Waiting) else asked
        if request is not None:
            self.run(request, "finish")

    def lose_what_others_stand_on(self, s: Situation) -> None:
        """A prefix has its full attention in the host alone, its load having failed there, and the rest on the device too; then
        others want the host's room until the prefix is gone."""
        page, script = self.world.host.page_size, self.tiered.script
        prompt = self.whole(s)[: self.sizes.slots * page]
        script.fates.clear()
        self.put_in_host(prompt, s.extra_key)
        script.fates.append(False)
        asked = self.ask([*prompt, 1], s.extra_key)
        script.fates.clear()
        self.tiered.settle()
        if isinstance(asked, Waiting):
            self.abandon(asked)
        elif asked is not None:
            self.end_request(asked, "abort")
        # One page each, so that the device, which is as large at least as half a host, has room for what stands there.
        for number in range(12):
            self.serve_here([s.number % 3] * page, (b"more", bytes([number])))
            self.tiered.settle()
        self.serve_whole([*prompt, *s.tails[0]][:MAX_TOKENS], s.extra_key)

    def look_at(self, prompt: list[int], s: Situation) -> None:
        """Every way the prefix could be asked for."""
        for cut in range(1 + s.number % 3):
            self.world.match(np.asarray(prompt[: len(prompt) - cut], np.int32), s.extra_key)
