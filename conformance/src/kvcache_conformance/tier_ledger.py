"""What is where in two tiers, kept beside a cache from what its transfer controller was asked for.

The script says which copies ran and how they ended, allocators say what was freed; a probe, brought by whoever knows the cache's
inside, says what the cache claims to have in host memory. Claims are compared with the slots' content and with the copies that
could have brought it, never trusted.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple, final

import numpy as np

from kvcache_conformance.claims import Held, require
from kvcache_conformance.page_content import page_content
from kvcache_conformance.reference_model import TOKEN_BYTES, PageKey, PrefixModel
from kvcache_conformance.stored_world import StoredWorld
from kvcache_conformance.transfer_script import ScriptedCopy, TransferScript
from kvcache_core.contracts.cache import BasePrefixCache
from kvcache_core.contracts.tokens import ExtraKey


class HostClaims(NamedTuple):
    """By component: the slot of each page that the cache has in host memory, the pages whose copy to the host runs, and the slots
    that wait for the storage."""

    resident: Mapping[str, Mapping[PageKey, int]]
    copying: Mapping[str, Collection[PageKey]]
    fetching: Mapping[str, Collection[int]]


Probe = Callable[[], HostClaims]


@final
class TierLedger:
    """`counts_losses`: every page that leaves the cache altogether must be in its counters (decidable for full attention alone:
    other components' pages can become useless, and are counted in other units)."""

    def __init__(
        self,
        cache: BasePrefixCache,
        script: TransferScript,
        probe: Probe,
        *,
        counts_losses: bool = True,
        stored: StoredWorld | None = None,
    ) -> None:
        self.script = script
        self.claims = probe()
        self.events: Counter[str] = Counter()
        self._cache = cache
        self._probe = probe
        self._counts_losses = counts_losses
        self._stored = stored
        self._keys: dict[ScriptedCopy, list[PageKey]] = {}
        self._known: set[tuple[str, PageKey]] = set()
        self._given_up = 0

    def ends(self, extra_key: ExtraKey, tokens: bytes) -> dict[str, set[int]]:
        """Ends of the pages of this prefix that are in host memory, by component."""
        found: dict[str, set[int]] = {}
        for name, resident in self.claims.resident.items():
            found[name] = {
                len(prefix) // TOKEN_BYTES for key, prefix in resident if key == extra_key and tokens.startswith(prefix)
            }
        return found

    def keys_of(self, copy: ScriptedCopy) -> list[PageKey]:
        """The pages that a copy under way carries."""
        return self._keys[copy]

    def in_flight(self, component: str) -> dict[int, PageKey]:
        """Device pages that belong to loads under way, with what they will hold."""
        copies = [copy for copy in self.script.pending["load"] if copy.component == component]
        return {index: key for copy in copies for index, key in zip(copy.device, self._keys[copy], strict=True)}

    def loading(self, component: str, key: PageKey) -> list[ScriptedCopy]:
        """Loads under way that bring this page."""
        return [copy for copy in self.script.pending["load"] if copy.component == component and key in self._keys[copy]]

    def ended_loads(self) -> dict[str, set[int]]:
        """Destinations of the loads that ended in the last call."""
        ended: dict[str, set[int]] = {name: set() for name in self.claims.resident}
        for copy in self.script.ended:
            if copy.direction == "load":
                ended[copy.component].update(copy.device)
        return ended

    def in_host(self) -> set[tuple[str, PageKey]]:
        """What host memory has, by component."""
        return {(name, key) for name, resident in self.claims.resident.items() for key in resident}

    def on_its_way(self) -> set[tuple[str, PageKey]]:
        """What copies under way bring into host memory."""
        return {(name, key) for name, copying in self.claims.copying.items() for key in copying}

    def note_started(self, model: PrefixModel) -> list[ScriptedCopy]:
        """Find out what the copies submitted in the last call carry. Before its losses are noted."""
        started = self.script.take_started()
        for copy in started:
            if copy.direction == "write":
                source = model.resident(copy.component)
                places = copy.device
            else:
                source = {slot: key for key, slot in self.claims.resident[copy.component].items()}
                places = copy.host
            for place in places:
                require(place in source, f"a {copy.direction} of {copy.component!r} reads {place}, where the cache has nothing")
            self._keys[copy] = [source[place] for place in places]
            self.events[f"{copy.direction} started"] += 1
        return started

    def land(
        self, model: PrefixModel, freed: Mapping[str, Collection[int]], waiting: Collection[Held]
    ) -> set[tuple[str, PageKey]]:
        """Loads that ended in the last call: each page is the cache's now, or was freed for a reason. `waiting`: the locks of
        tickets that still wait. Returns what copies to the host that ended carried, however they ended."""
        written: set[tuple[str, PageKey]] = set()
        locked = {
            (name, (held.extra_key, held.tokens[: end * TOKEN_BYTES]))
            for held in waiting
            for name in model.geometries
            for end in model.needed_ends(name, held.length)
        }
        for copy in self.script.take_ended():
            self.events["cancelled" if copy.cancelled else f"{copy.direction} {'ok' if copy.ok else 'failed'}"] += 1
            keys = self._keys[copy]
            if copy.direction == "write":
                written.update((copy.component, key) for key in keys)
                continue
            name = copy.component
            page = model.page_size * TOKEN_BYTES
            for index, (extra_key, prefix) in zip(copy.device, keys, strict=True):
                known = model.index_at(name, extra_key, prefix, len(prefix) // TOKEN_BYTES) is not None
                if index not in freed[name]:
                    require(copy.ok, f"a load of {name!r} failed, its destination {index} was not freed")
                    require(not known, f"page {index} of {name!r} was loaded although the cache has one, and was not freed")
                    model.put(name, extra_key, prefix, index)
                    continue
                above = len(prefix) <= page or not model.geometries[name].prefix_closed
                above = above or model.index_at(name, extra_key, prefix, len(prefix[:-page]) // TOKEN_BYTES) is not None
                useless = not copy.ok or known or not above or (name, (extra_key, prefix)) not in locked
                require(useless, f"a load of {name!r} ended well and its page {index} was thrown away")
                self.events["late load thrown away"] += copy.ok
        return written

    def observe(self, call: str, model: PrefixModel, *, forgets: bool = False) -> bool:
        """After a call, device memory already noted: look at the host's side. `forgets`: the call was to forget everything.
        Returns whether the host lost something."""
        before, self.claims = self.claims, self._probe()
        for name, resident in self.claims.resident.items():
            for key, slot in resident.items():
                if before.resident[name].get(key) == slot:
                    continue
                brought = self._stored is not None and (name, slot) in self._stored.script.landed
                brought = brought or any(
                    copy.ok and copy.component == name and (slot, key) in zip(copy.host, keys, strict=True)
                    for copy, keys in self._keys.items()
                    if copy.direction == "write"
                )
                require(
                    brought, f"{call}: {name!r} to {len(key[1]) // TOKEN_BYTES} is claimed in slot {slot}, no copy brought it"
                )
        known = {(name, key) for name in self.claims.resident for key in model.resident(name).values()}
        known |= self.in_host() | self.on_its_way()
        lost, self._known = self._known - known, known
        if self._stored is not None:
            holds = self._stored.script.holds
            lost = {(name, key) for name, key in lost if not holds(page_content(key[0], name, key[1]).tobytes())}
        counters = self._cache.counters
        given_up = counters.host_evicted_tokens + sum(counters.dropped.values())
        counted, self._given_up = given_up - self._given_up, given_up
        if self._counts_losses and not forgets:
            tokens = len(lost) * model.page_size
            require(
                tokens <= counted, f"{call}: {tokens} tokens are in no tier any more, only {counted} were counted as given up"
            )
        self.events["pages lost, counted"] += bool(lost) and not forgets
        if self._stored is not None:
            left = {name: held.keys() - self.claims.resident[name].keys() for name, held in before.resident.items()}
            self._stored.check_lost(call, model, left, self.claims.copying, forgets=forgets)
            self._stored.script.landed.clear()
            if forgets:
                self._stored.forget()
        if call == "poll" or forgets:
            self._keys = {copy: keys for copy, keys in self._keys.items() if not copy.ended}
        return any(before.resident[name].keys() - resident.keys() for name, resident in self.claims.resident.items())

    def verify(self, model: PrefixModel) -> None:
        """Accounting and content of host memory."""
        for name, resident in self.claims.resident.items():
            size = self._cache.size(name, "host")
            about = f"of {name!r} in host memory: {size}"
            coming = [slot for copy in self.script.pending["write"] if copy.component == name for slot in copy.host]
            fetching = self.claims.fetching[name]
            slots = [*resident.values(), *coming, *fetching]
            require(len(set(slots)) == len(slots) and all(1 <= slot <= size.total for slot in slots), f"two owners {about}")
            require(sum(size[:5]) == size.total and min(size) >= 0, f"sizes do not sum up {about}")
            require(size.request_owned == 0, f"slots without an owner {about}")
            owned = len(coming) + len(fetching)
            require(size.in_flight == owned, f"what is under way owns {owned}, the size {about}")
            require(len(fetching) <= size.total // 2, f"fetches own more than half {about}")
            require(size.evictable + size.protected == len(resident), f"the cache has {len(resident)}, the size {about}")
            for (extra_key, prefix), slot in resident.items():
                content = self.script.slots.get((name, slot))
                right = content is not None and np.array_equal(content, page_content(extra_key, name, prefix))
                require(right, f"slot {slot} should hold {name!r} to {len(prefix) // TOKEN_BYTES} and holds something else")
            for index in self.in_flight(name):
                require(index not in model.resident(name), f"page {index} of {name!r} has two owners: a load and the cache")
