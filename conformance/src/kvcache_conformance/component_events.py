"""What happened to one component and not to another: counted, never judged. Whoever runs a machine asserts the counts.

A machine over several components proves nothing about them unless hits were cut by one of them alone, one of them went while
another stayed, and its holes were filled again; these are hard to reach by independent calls and easily missed without counting.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import final

from kvcache_conformance.reference_model import TOKEN_BYTES, PageKey, PrefixModel
from kvcache_conformance.transfer_script import ScriptedCopy
from kvcache_core.contracts.tokens import ExtraKey

ALONE = "a load failed for one component alone"


def component_events(names: Sequence[str]) -> list[str]:
    """Situations that a run over these components of two tiers must have reached, beside those of any component."""
    events: list[str] = []
    others = [name for name in names if name != "full"]
    if "swa" in names:
        events.append("hit cut by a hole in the window")
    if "recurrent" in names:
        events.append("hit cut by a missing state")
    if len(names) > 1:
        events += [f"{name} evicted alone" for name in others]
        events += [f"{name} left the host alone" for name in others]
        events += [f"hole of {name} refilled" for name in others]
        events += ["load of several components", ALONE]
    return events


def rare_component_events(names: Sequence[str]) -> list[str]:
    """Further ones, for runs of many examples: a dozen in a thousand reach them."""
    return [freed_with_its_prefix("insert")] if "full" in names and len(names) > 1 else []


def freed_with_its_prefix(call: str) -> str:
    """The count of device pages that `call` freed since what they stand on was lost, without having been asked for any."""
    return f"{call} freed what lost its prefix"


@final
class ComponentEvents:
    """`model`: the device's pages. `events`: the ledger's counts."""

    def __init__(self, model: PrefixModel, events: Counter[str]) -> None:
        self._model = model
        self._events = events
        self._several = len(model.geometries) > 1

    def matched(self, extra_key: ExtraKey, tokens: bytes, device_len: int, matched_len: int) -> None:
        """A match that found less than the tree knows: which component was in the way, alone."""
        if device_len == matched_len:
            return
        for name, geometry in self._model.geometries.items():
            if geometry.prefix_closed or min(matched_len, self._without(name, extra_key, tokens)) <= device_len:
                continue
            if geometry.at_node_end:
                self._events["hit cut by a missing state"] += 1
            elif self._has_beyond(name, extra_key, tokens, device_len):
                self._events["hit cut by a hole in the window"] += 1

    def evicted(self, gone: Mapping[str, Collection[PageKey]]) -> None:
        """Device pages that one call took."""
        for name, keys in gone.items():
            if keys and self._stays(name, keys, gone):
                self._events[f"{name} evicted alone"] += 1

    def left_host(self, before: Mapping[str, Collection[PageKey]], after: Mapping[str, Collection[PageKey]]) -> None:
        """Host pages before and after one call."""
        left = {name: set(keys).difference(after[name]) for name, keys in before.items()}
        for name, keys in left.items():
            if any(key in after[other] for other in after if other != name for key in keys):
                self._events[f"{name} left the host alone"] += 1

    def known(self, extra_key: ExtraKey, tokens: bytes) -> set[int]:
        """Before an insert: where pages of any component end."""
        model, page = self._model, self._model.page_size
        ends = range(page, len(tokens) // TOKEN_BYTES + 1, page)
        return {end for end in ends if any(model.index_at(name, extra_key, tokens, end) is not None for name in model.geometries)}

    def adopted(self, component: str, ends: Collection[int], known: Collection[int]) -> None:
        """What an insert brought of a component; `known`: what others had then."""
        self._events[f"hole of {component} refilled"] += any(end in known for end in ends)

    def loaded(self, own: Sequence[ScriptedCopy]) -> None:
        """The copies that one load started."""
        self._events["load of several components"] += len({copy.component for copy in own}) > 1

    def claimed(self, own: Sequence[ScriptedCopy], ok: bool) -> None:
        """The copies of a load that is done."""
        good = {copy.component for copy in own if copy.ok}
        bad = {copy.component for copy in own if not copy.ok and not copy.cancelled}
        self._events[ALONE] += bool(good) and bool(bad - good) and not ok

    def _without(self, name: str, extra_key: ExtraKey, tokens: bytes) -> int:
        """How far the other components reach; without any, as far as there are tokens."""
        model, page = self._model, self._model.page_size
        if not self._several:
            return len(tokens) // TOKEN_BYTES
        more = {name: range(page, len(tokens) // TOKEN_BYTES + 1, page)}
        return model.longest_usable(extra_key, tokens, more)

    def _has_beyond(self, name: str, extra_key: ExtraKey, tokens: bytes, length: int) -> bool:
        page = self._model.page_size
        ends = range(length + page, len(tokens) // TOKEN_BYTES + 1, page)
        return any(self._model.index_at(name, extra_key, tokens, end) is not None for end in ends)

    def _stays(self, name: str, keys: Collection[PageKey], gone: Mapping[str, Collection[PageKey]]) -> bool:
        others = [other for other in gone if other != name and not gone[other]]
        return any(self._has(other, key) for other in others for key in keys)

    def _has(self, component: str, key: PageKey) -> bool:
        extra_key, prefix = key
        return self._model.index_at(component, extra_key, prefix, len(prefix) // TOKEN_BYTES) is not None
