"""A cache with a host tier under test: `CheckedCache` and what a host does besides, loads, their tickets, polls and idle steps.

Predicted for a load: whether one is to be had at all, how far it reaches, which pages it takes, when its ticket is done, and that
its lock then delivers. It does not know how copies end: the script does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from kvcache_conformance.checked_cache import CheckedCache
from kvcache_conformance.claims import Held, Match, require
from kvcache_conformance.host_model import HostModel
from kvcache_conformance.reference_model import TOKEN_BYTES
from kvcache_conformance.stored_world import Prefetch, StoredWorld
from kvcache_conformance.tier_ledger import Probe, TierLedger
from kvcache_conformance.transfer_script import ScriptedCopy, TransferScript
from kvcache_core.contracts.cache import BasePrefixCache
from kvcache_core.contracts.locks import Refused, Ticket
from kvcache_core.contracts.results import PersistReport
from kvcache_core.contracts.tokens import ExtraKey


@dataclass(slots=True, eq=False)
class Load:
    """A ticket, its lock, and the copies it depends on: its own and those it joined."""

    ticket: Ticket
    held: Held
    own: Sequence[ScriptedCopy]
    joined: Sequence[ScriptedCopy]
    over: bool = False

    @property
    def copies(self) -> list[ScriptedCopy]:
        return [*self.own, *self.joined]


@final
class TieredWorld:
    """`script` drives the controller of `cache`, `probe` tells what it claims to have in host memory, `stored` is the storage's
    side where there is one."""

    def __init__(
        self, cache: BasePrefixCache, host: HostModel, script: TransferScript, probe: Probe, stored: StoredWorld | None = None
    ) -> None:
        only_full = all(geometry.prefix_closed for geometry in host.geometries.values())
        self.cache = cache
        self.host = host
        self.script = script
        self.stored = stored
        self.ledger = TierLedger(cache, script, probe, counts_losses=only_full, stored=stored)
        self.checked = CheckedCache(cache, host, lru=False, ledger=self.ledger)
        self.loads: set[Load] = set()
        self._only_full = only_full

    def load(self, match: Match) -> Load | Refused:
        """`load`. Where full attention is all, the outcome is predicted exactly; elsewhere it is bounded, and certain where there
        is room for everything."""
        checked, model = self.checked, self.checked.model
        stale = match.losses != checked.losses
        names = list(self.host.geometries)
        device_len = model.longest_usable(match.extra_key, match.tokens)
        in_host = self.ledger.ends(match.extra_key, match.tokens)
        host_len = model.longest_usable(match.extra_key, match.tokens, in_host)
        expected = self._expected(match, device_len, min(host_len, match.result.host_len)) if self._only_full else None
        locked = {name: checked.locked(name) | self._on_path(name, match) for name in names}
        certain = not stale and match.result.host_len > device_len and self._has_room(match)
        checked.forget_journals()
        before = len(self.script.pending["load"])
        answer = self.cache.load(match.result)
        own = list(self.script.pending["load"])[before:]
        checked.learn("load", locked, allocates=True)
        if isinstance(answer, Refused):
            require(not own, f"a load was refused ({answer.name}) and yet copies")
            require(not certain, f"load gave {answer.name}, and there is room for all components")
            if expected is not None and not stale:
                nothing = match.result.host_len <= device_len
                right = Refused.NOTHING_TO_DO if nothing else Refused.NO_ROOM
                require(answer is right and expected <= device_len, f"load gave {answer.name}, {expected} tokens could be had")
            self.ledger.events[f"load refused: {answer.name}"] += 1
            return answer
        lock = answer.lock
        assert lock is not None
        held = Held(lock, match.tokens, match.extra_key, lock.length, set(names))
        checked.waiting.add(held)
        require(
            device_len < lock.length <= host_len, f"a load of {lock.length} tokens, where {device_len} to {host_len} make sense"
        )
        if expected is not None and not stale:
            require(lock.length == expected, f"a load of {lock.length} tokens where {expected} are to be had")
        require(not certain or lock.length == match.result.host_len, f"a load of {lock.length} tokens, and there is room for all")
        load = Load(answer, held, own, [copy for copy in self._carrying(held) if copy not in own])
        require(bool(load.copies), "a ticket that waits for nothing")
        self.loads.add(load)
        self.ledger.events["loads"] += 1
        checked.component_events.loaded(own)
        self.ledger.events["joins"] += bool(load.joined)
        self.ledger.events["load cut short"] += lock.length < match.result.host_len
        self._check_ticket(load)
        return load

    def poll(self) -> int:
        """`poll`: commits what the script lets through, and nothing else."""
        checked = self.checked
        checked.forget_journals()
        locked = {name: checked.locked(name) for name in self.host.geometries}
        n = self.cache.poll()
        ended = len(self.script.ended) + (0 if self.stored is None else self.stored.ended())
        require(n == ended, f"poll says {n} transfers ended, {ended} did")
        checked.learn("poll", locked)
        for load in self.loads:
            self._check_ticket(load)
        return n

    def cancel(self, load: Load) -> None:
        """`Ticket.cancel`: the lock goes; copies nobody else waits for and that were not dispatched are dropped."""
        checked = self.checked
        done, others = load.ticket.done, [other for other in self.loads if other is not load and not other.over]
        droppable = [
            copy
            for copy in load.copies
            if not copy.ended and not copy.dispatched and not any(copy in other.copies for other in others)
        ]
        checked.forget_journals()
        checked.waiting.discard(load.held)
        locked = {name: checked.locked(name) for name in self.host.geometries}
        load.ticket.cancel()
        load.over = True
        self.loads.remove(load)
        for copy in load.copies:
            require(
                copy.cancelled == (copy in droppable) or copy.ended, "a load was dropped that others wait for, or was not dropped"
            )
        checked.learn("cancel", locked)
        self.ledger.events["cancels"] += not done
        require(not load.ticket.ok, "a cancelled load is ok")

    def claim(self, load: Load) -> Held | None:
        """A done ticket: its lock, checked, which is the caller's; or None, released, where the load did not bring everything."""
        require(load.ticket.done, "the test claims a load that is not done")
        ok = load.ticket.ok
        load.over = True
        self.loads.remove(load)
        self.checked.waiting.remove(load.held)
        self.checked.held.add(load.held)
        self.ledger.events["ticket ok" if ok else "ticket not ok"] += 1
        self.checked.component_events.claimed(load.own, ok)
        if ok:
            for name in self.host.geometries:
                self.checked.segment(load.held, name)
            return load.held
        self.checked.held.remove(load.held)
        self.checked.waiting.add(load.held)
        self.checked.unlock(load.held)
        return None

    def evict_host(self, component: str, n: int) -> int:
        """`evict` in the host tier: never what is locked and nowhere else."""
        checked = self.checked
        evictable = self.cache.size(component, "host").evictable
        locked = {name: checked.locked(name) for name in self.host.geometries}
        pinned, before = self.pinned_in_host(component), self.ledger.claims.resident
        checked.forget_journals()
        freed = self.cache.evict(component, n, "host")
        checked.learn("evict", locked)
        checked.component_events.left_host(before, self.ledger.claims.resident)
        wanted = min(max(n, 0), evictable)
        # What lies below a dropped start goes with it, where other components have data that the start no longer has.
        right = freed == wanted if self._only_full else freed >= wanted
        require(right, f"evict({n}) in host memory freed {freed} of {evictable}")
        gone = pinned - set(self.ledger.claims.resident[component].values())
        require(not gone, f"evict in host memory took {gone}, which is locked and nowhere else")
        return freed

    def pinned_in_host(self, component: str) -> set[int]:
        """Slots of locked pages that have no device copy."""
        model, resident = self.checked.model, self.ledger.claims.resident[component]
        keys = {
            (held.extra_key, held.tokens[: end * TOKEN_BYTES])
            for held in self.checked.waiting | self.checked.held
            if component in held.parts
            for end in model.needed_ends(component, held.length)
        }
        return {slot for key, slot in resident.items() if key in keys and key not in model.resident(component).values()}

    def turn(self) -> None:
        """An idle step."""
        self.host.idle()
        self.poll()

    def settle(self) -> None:
        """Idle steps until nothing is under way."""
        self.script.let_all_through()
        if self.stored is not None:
            self.stored.script.let_all_through()
        for _ in range(10 if self.stored is None else 40):
            if self.script.quiet and (self.stored is None or (self.stored.script.quiet and not self.stored.running)):
                return
            self.turn()
        raise AssertionError("transfers that end do not end")

    def prefetch(self, ids: list[int], extra_key: ExtraKey = ()) -> Prefetch | Refused:
        """`prefetch`, which moves nothing yet."""
        assert self.stored is not None
        checked = self.checked
        checked.forget_journals()
        started = self.stored.prefetch(ids, extra_key)
        checked.learn("prefetch", {name: checked.locked(name) for name in self.host.geometries})
        return started

    def persist(self, deadline: float) -> PersistReport:
        """`persist`, and what it says is held against what is where."""
        assert self.stored is not None
        checked = self.checked
        locked = {name: checked.locked(name) for name in self.host.geometries}
        checked.forget_journals()
        report = self.cache.persist(deadline)
        checked.learn("persist", locked)
        self.stored.ended()
        self.stored.check_report(report, checked.model, self.ledger.claims.resident)
        return report

    def verify(self) -> None:
        self.checked.verify()
        for name in self.host.geometries:
            size = self.cache.size(name, "host")
            pinned = len(self.pinned_in_host(name))
            # A window may begin inside a node, which is then held whole.
            right = size.protected == pinned if self._only_full else size.protected >= pinned
            require(right, f"{pinned} slots are locked and nowhere else, the size of {name!r}: {size}")
        for load in self.loads:
            self._check_ticket(load)

    def drain(self) -> None:
        """With no lock left: everything ends and is evicted from both tiers, and every page and slot is free again."""
        self.settle()
        for name, allocator in self.host.allocators.items():
            self.checked.evict(name, allocator.total)
        self.settle()
        for name in self.host.geometries:
            self.evict_host(name, self.cache.size(name, "host").total)
        self.verify()
        for name, allocator in self.host.allocators.items():
            size = self.cache.size(name, "host")
            require(allocator.n_free == allocator.total, f"{allocator.total - allocator.n_free} pages of {name!r} are lost")
            require(size.free == size.total, f"slots of {name!r} are lost: {size}")

    def _expected(self, match: Match, device_len: int, host_len: int) -> int:
        """How far a load of full attention reaches: pages under way are joined, the others need room, which eviction makes."""
        [name] = self.host.geometries
        page, model = self.host.page_size, self.checked.model
        locked = self.checked.locked(name) | self._on_path(name, match)
        room = self.host.allocators[name].n_free + len(model.resident(name)) - len(locked & model.resident(name).keys())
        length = device_len
        for end in range(device_len + page, host_len + 1, page):
            if not self.ledger.loading(name, (match.extra_key, match.tokens[: end * TOKEN_BYTES])):
                room -= 1
            if room < 0:
                break
            length = end
        return length

    def _has_room(self, match: Match) -> bool:
        """Whether all that the host has of this prefix would fit, with nothing evicted that is on the device of it."""
        in_host = self.ledger.ends(match.extra_key, match.tokens)
        page, model = self.host.page_size, self.checked.model
        for name in self.host.geometries:
            ends = range(page, len(match.tokens) // TOKEN_BYTES + 1, page)
            here = {end for end in ends if model.index_at(name, match.extra_key, match.tokens, end) is not None}
            size = self.cache.size(name)
            if len(in_host[name] - here) > size.free + max(0, size.evictable - len(here)):
                return False
        return True

    def _on_path(self, component: str, match: Match) -> set[int]:
        model = self.checked.model
        ends = model.needed_ends(component, match.result.host_len)
        return {i for end in ends if (i := model.index_at(component, match.extra_key, match.tokens, end)) is not None}

    def _carrying(self, held: Held) -> list[ScriptedCopy]:
        """Loads under way that bring what a lock covers."""
        copies: dict[ScriptedCopy, None] = {}
        for name in self.host.geometries:
            for end in self.checked.model.needed_ends(name, held.length):
                copies |= dict.fromkeys(self.ledger.loading(name, (held.extra_key, held.tokens[: end * TOKEN_BYTES])))
        return list(copies)

    def _check_ticket(self, load: Load) -> None:
        ticket, held = load.ticket, load.held
        done = all(copy.ended for copy in load.copies)
        require(ticket.done == done, f"a ticket says done: {ticket.done}; its copies ended: {done}")
        usable = self.checked.model.is_usable(held.extra_key, held.tokens, held.length)
        require(ticket.ok == (done and usable), f"a ticket says ok: {ticket.ok}; done {done}, usable {usable}")
