"""Single comparisons that `CheckedCache` is made of: content, accounts, and what was offered. They hold no state."""

from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from kvcache_conformance.claims import Violation, require
from kvcache_conformance.host_model import HostModel
from kvcache_conformance.page_content import page_content
from kvcache_conformance.pool_model import Journal, StrictAllocator
from kvcache_conformance.reference_model import TOKEN_BYTES, PageKey
from kvcache_conformance.transfer_script import ScriptedCopy
from kvcache_core.contracts.results import NO_INDICES, Indices, InsertResult, Segment, SizeInfo


def check_content(host: HostModel, component: str, keys: Sequence[PageKey], indices: Indices) -> None:
    """Each page holds what its prefix says. Nothing is dispatched."""
    pages = host.peek(component, indices)
    for (extra_key, prefix), page, index in zip(keys, pages, indices.tolist(), strict=True):
        if not np.array_equal(page, page_content(extra_key, component, prefix)):
            end = len(prefix) // TOKEN_BYTES
            raise Violation(f"page {index} of {component!r} should hold the prefix of {end} tokens and holds something else")


def check_account(size: SizeInfo, allocator: StrictAllocator, owned: int, coming: int, resident: int, about: str) -> None:
    """The five numbers sum up, and each is what the ledger has."""
    require(sum(size[:5]) == size.total == allocator.total and min(size) >= 0, f"sizes do not sum up {about}")
    require(size.free == allocator.n_free, f"the allocator has {allocator.n_free} free, the size {about}")
    require(size.request_owned == owned, f"requests own other pages than the size {about}")
    require(size.in_flight == coming, f"loads under way own {coming}, the size {about}")
    require(size.evictable + size.protected == resident, f"the cache owns {resident}, the size {about}")


def check_destinations(call: str, started: Iterable[ScriptedCopy], journals: Mapping[str, Journal]) -> None:
    """What a call allocated is where its loads go; the rest it gave back."""
    loads = [copy for copy in started if copy.direction == "load"]
    for name, journal in journals.items():
        wanted = {index for copy in loads if copy.component == name for index in copy.device}
        spare = set(journal.taken) - wanted
        require(wanted <= set(journal.taken), f"{call} loads into {wanted} of {name!r}, not all of which it allocated")
        require(spare <= set(journal.freed), f"{call} allocated {spare} of {name!r} for nothing")


def longest_run(keys: Collection[PageKey], page_size: int) -> int:
    """How many pages follow one another in one prefix, at most: what a single victim can have had of them."""
    ends: dict[PageKey, int] = {}
    for extra_key, prefix in sorted(keys, key=lambda key: len(key[1])):
        ends[extra_key, prefix] = ends.get((extra_key, prefix[: -page_size * TOKEN_BYTES]), 0) + 1
    return max(ends.values(), default=0)


def check_offer(name: str, offered: Mapping[int, int], known: Collection[int], result: InsertResult) -> list[int]:
    """What an insert did with the pages of one component, `offered` by index with their ends, `known` being the ends that were
    there before. Returns those that are the cache's now."""
    duplicates: list[int] = result.duplicates[name].tolist()
    refused: list[int] = result.refused[name].tolist()
    back = duplicates + refused
    require(len(set(back)) == len(back) and set(back) <= offered.keys(), f"insert gave back {back} of {list(offered)}")
    for index, end in offered.items():
        about = f"the page of {name!r} to {end}"
        if end > result.length:
            require(index in refused, f"{about} lies beyond {result.length} and is not refused")
            continue
        require((index in duplicates) == (end in known), f"{about} was known: {end in known}; its duplicates: {duplicates}")
        require(index not in refused, f"{about} is usable and was refused")
    return [index for index in offered if index not in back]


def ends_of(host: HostModel, component: str, segments: Sequence[Segment]) -> dict[int, int]:
    """The end position of every offered index."""
    page, ends = host.page_size, dict[int, int]()
    for segment in segments:
        if host.geometries[component].at_node_end:
            ends[int(segment.indices[0])] = segment.end
        else:
            ends |= {index: segment.start + (i + 1) * page for i, index in enumerate(segment.indices.tolist())}
    return ends


def copies_of(given: Mapping[str, Indices], names: Mapping[str, object]) -> dict[str, Indices]:
    """What an insert gave back, as arrays of our own, for every component that was offered."""
    unknown = set(given) - set(names)
    require(not any(len(given[name]) for name in unknown), f"insert gave back indices of {unknown}, which were not offered")
    return {name: given.get(name, NO_INDICES).copy() for name in names}
