"""A host without a model: pages hold f(extra_key, component, prefix), requests follow the scheduler protocol step by step, and a
plain dictionary says what should be resident. Everything it does goes through `BasePrefixCache`.
"""

import hashlib
from collections import Counter

import numpy as np
import pytest

from kvcache_core.contracts.results import Segment


def page_content(extra_key, component, prefix):
    framed = repr((extra_key, component)).encode() + np.ascontiguousarray(prefix).tobytes()
    return int.from_bytes(hashlib.blake2b(framed, digest_size=7).digest(), "big")


class Request:
    """A running request. `pages[name]`: page number -> index; `own[name]`: those it owns; `states`: its snapshots by position."""

    def __init__(self, host, ids, extra_key, lock):
        self.host, self.ids, self.extra_key, self.lock = host, ids, extra_key, lock
        self.computed = lock.length
        self.pages = {name: {} for name in host.paged}
        self.own = {name: {} for name in host.paged}
        self.states = {}
        self.early = False
        self.remap()

    def remap(self):
        for name in self.host.paged:
            segment = self.lock.segment(name)
            for i, index in enumerate(segment.indices.tolist()):
                self.pages[name][segment.start // self.host.page + i] = index

    def owned(self, name):
        return list(self.states.values()) if name == "recurrent" else list(self.own[name].values())


class Host:
    """Drives one cache by the scheduler protocol. `model[component]`: (extra_key, prefix bytes) -> (index, its serial)."""

    def __init__(self, parts, page):
        self.cache, self.tree, self.pools, self.geometries = parts
        self.page = page
        self.paged = [name for name in self.geometries if name != "recurrent"]
        self.running = []
        self.model = {name: {} for name in self.geometries}
        self.events = Counter()
        self._watch()

    def _watch(self):
        store, split, drop = self.tree.store, self.tree.store.split, self.tree.store.drop

        def counted_split(node, at):
            self.events["splits"] += 1
            self.events["splits of locked nodes"] += any(cell.locks for cell in node.cells)
            return split(node, at)

        def counted_drop(node, reclaimed):
            self.events["nodes dropped"] += 1
            return drop(node, reclaimed)

        store.split, store.drop = counted_split, counted_drop

    # what the scheduler does

    def alloc(self, name, n):
        """None when even eviction does not help."""
        pool = self.pools[name]
        if pool.n_free < n:
            before, splits = pool.n_free, self.events["splits"]
            missing = n - before
            freed = self.cache.evict(name, missing)
            assert freed <= pool.n_free - before
            self.events["evictions"] += freed > 0
            self.events["evictions under lock"] += freed > 0 and bool(self.running)
            self.events["trims"] += self.events["splits"] > splits
        return pool.alloc(n)

    def admit(self, ids, extra_key=()):
        match = self.cache.match_prefix(ids[:-1], extra_key)
        self.events["hits"] += match.device_len > 0
        lock = self.cache.lock_ref(match)
        assert lock is not None, "nothing ran between match and lock"
        request = Request(self, ids, extra_key, lock)
        self.running.append(request)
        return request

    def compute(self, request, n, snapshot=True):
        """Compute up to `n` more tokens and hand the whole pages to the cache. False: no memory, the request was preempted."""
        page, end = self.page, min(len(request.ids), request.computed + n)
        boundary = end - end % page
        for name in self.paged:
            have = request.pages[name]
            wanted = [i for i in range(request.computed // page, -(-end // page)) if i not in have]
            indices = self.alloc(name, len(wanted))
            if indices is None:
                self.finish(request)
                self.events["preemptions"] += 1
                return False
            for i, index in zip(wanted, indices.tolist(), strict=True):
                have[i] = request.own[name][i] = index
        if snapshot and "recurrent" in self.geometries and boundary > request.lock.length and boundary not in request.states:
            slot = self.alloc("recurrent", 1)
            if slot is not None:
                request.states[boundary] = int(slot[0])
                self._fill(request, "recurrent", boundary, int(slot[0]))
        request.computed = end
        for name in self.paged:
            for i, index in request.own[name].items():
                self._fill(request, name, (i + 1) * page, index)
        self._leave_window(request)
        self.hand_over(request)
        return True

    def _fill(self, request, name, position, index):
        self.pools[name].content[index] = page_content(request.extra_key, name, request.ids[:position])

    def _leave_window(self, request):
        if "swa" not in self.geometries:
            return
        first = self.geometries["swa"].first_needed(request.computed - request.computed % self.page) // self.page
        gone = [i for i in request.own["swa"] if i < first]
        if gone:
            self.pools["swa"].free(np.array([request.own["swa"].pop(i) for i in gone], np.int32))
            self.events["window frees"] += 1
        for i in [i for i in request.pages["swa"] if i < first]:
            del request.pages["swa"][i]

    def values(self, request, end):
        offered = {}
        for name in self.paged:
            own = sorted(i for i in request.own[name] if i < end // self.page)
            if own:
                assert own == list(range(own[0], own[-1] + 1))
                indices = np.array([request.own[name][i] for i in own], np.int32)
                offered[name] = (Segment(own[0] * self.page, (own[-1] + 1) * self.page, indices),)
        if request.states:
            states = sorted((at, index) for at, index in request.states.items() if at <= end)
            offered["recurrent"] = tuple(Segment(at - self.page, at, np.array([index], np.int32)) for at, index in states)
        return offered

    def offer(self, request):
        end = min(request.computed, len(request.ids))
        end -= end % self.page
        values = self.values(request, end)
        result = self.cache.insert(request.ids[:end], values, request.extra_key)
        again = self.cache.match_prefix(request.ids[: result.length], request.extra_key)
        assert again.device_len == result.length, "I9"
        self.events["duplicates"] += any(len(d) for d in result.duplicates.values())
        self.events["refusals"] += any(len(r) for r in result.refused.values())
        self._remember(request, values, result)
        return result, again

    def _remember(self, request, values, result):
        for name, segments in values.items():
            left = set(result.duplicates[name].tolist()) | set(result.refused[name].tolist())
            for segment in segments:
                for i, index in enumerate(segment.indices.tolist()):
                    at = segment.end if name == "recurrent" else segment.start + (i + 1) * self.page
                    if index not in left:
                        assert at <= result.length, "T3: taken beyond the usable length"
                        key = (request.extra_key, request.ids[:at].tobytes())
                        self.model[name][key] = (index, int(self.pools[name].serial[index]))

    def hand_over(self, request):
        result, again = self.offer(request)
        if result.length <= request.lock.length:
            offered = sum(len(d) for d in result.duplicates.values())
            assert offered == 0, "all that was offered is refused"
            return
        lock = self.cache.lock_ref(again)
        assert lock is not None and lock.length == result.length
        old, request.lock = request.lock, lock
        request.remap()
        for name in self.paged:
            request.own[name] = {i: x for i, x in request.own[name].items() if i >= result.length // self.page}
        request.states = {at: x for at, x in request.states.items() if at > result.length}
        for name, indices in result.duplicates.items():
            self.pools[name].free(indices)
        self.cache.unlock_ref(old)
        request.early = False

    def release_window(self, request):
        if "swa" in self.geometries and not request.early and request.lock.length:
            self.cache.unlock_ref(request.lock, "swa")
            request.early = True
            self.events["early releases"] += 1

    def finish(self, request):
        result, _ = self.offer(request)
        owned = {name: set(request.owned(name)) for name in self.geometries}
        for name, indices in result.duplicates.items():
            self.pools[name].free(indices)
            owned[name] -= set(indices.tolist())
        kept = {name: set(result.refused[name].tolist()) for name in self.geometries}
        for name in self.geometries:
            offered = {
                x
                for s in self.values(request, request.computed - request.computed % self.page).get(name, ())
                for x in s.indices.tolist()
            }
            rest = (owned[name] - offered) | kept[name]
            self.pools[name].free(np.array(sorted(rest), np.int32))
        self._end(request)

    def abort(self, request):
        for name in self.geometries:
            self.pools[name].free(np.array(request.owned(name), np.int32))
        self._end(request)

    def _end(self, request):
        self.cache.unlock_ref(request.lock)
        self.running.remove(request)

    def serve(self, ids, extra_key=(), chunk=1 << 30):
        """A whole request; returns the tokens it found cached."""
        request = self.admit(ids, extra_key)
        hit = request.lock.length
        while request.computed < len(ids):
            if not self.compute(request, chunk):
                return hit
        self.finish(request)
        return hit

    # what must be true

    def expected_length(self, ids, extra_key=()):
        """The longest usable length by the definition, page by page, from the model alone."""
        limit = len(ids) - len(ids) % self.page
        return next(length for length in range(limit, -1, -self.page) if self._usable(ids, extra_key, length))

    def _usable(self, ids, extra_key, length):
        for name, geometry in self.geometries.items():
            if not length:
                break
            need = geometry.first_needed(length)
            ends = [length] if geometry.at_node_end else [e for e in range(self.page, length + 1, self.page) if e > need]
            if not all(self._resident(name, extra_key, ids[:end]) for end in ends):
                return False
        return True

    def _resident(self, name, extra_key, prefix):
        index, serial = self.model[name].get((extra_key, prefix.tobytes()), (0, -1))
        return self.pools[name].serial[index] == serial

    def check(self):
        owned = {name: [] for name in self.geometries}
        for request in self.running:
            for name in self.geometries:
                owned[name] += request.owned(name)
        self.cache.check_integrity({name: np.array(indices, np.int32) for name, indices in owned.items()})
        for request in self.running:
            self.check_content(request)

    def check_content(self, request):
        """I8 for what the request reads: its page table, and what its receipt says."""
        for name in self.paged:
            if name == "swa" and request.early:
                continue
            first = self.geometries[name].first_needed(request.computed) // self.page
            whole = request.computed // self.page
            for i in range(first, whole):
                index = request.pages[name][i]
                expected = page_content(request.extra_key, name, request.ids[: (i + 1) * self.page])
                assert self.pools[name].content[index] == expected, f"{name} page {i} of a running request is another one"
        if "recurrent" in self.geometries and request.lock.length:
            (slot,) = request.lock.segment("recurrent").indices.tolist()
            assert self.pools["recurrent"].content[slot] == page_content(
                request.extra_key, "recurrent", request.ids[: request.lock.length]
            )

    def drain(self):
        """Abort what runs, then I10: evicting everything empties every pool and root."""
        for request in list(self.running):
            self.abort(request)
        self.check()
        for name, pool in self.pools.items():
            self.cache.evict(name, pool.total)
            self.check()
        assert all(pool.n_free == pool.total for pool in self.pools.values())
        assert not self.tree.store.roots


@pytest.fixture(scope="session")
def make_host(make_parts):
    """Arguments as for `make_parts`."""

    def build(components="F", page=4, **more):
        return Host(make_parts(components, page, **more), page)

    return build
