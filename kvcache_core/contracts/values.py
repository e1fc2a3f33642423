"""The checks every cache makes on offered `Values` before it takes anything. A broken offer is a host's bug: it is raised."""

from collections.abc import Collection

import numpy as np

from kvcache_core.contracts.results import Segment, Values


def check_values(
    n_tokens: int, values: Values, page_size: int, components: Collection[str], states: Collection[str] | None = None
) -> None:
    """Check known components, page alignment, order, no overlap, index dtype and count.

    `states` names the components with one unit at a node's end: each of their segments has one index, those of the others have
    one a page and follow each other without a gap. A cache that leaves it out judges both by itself.

    Raises:
        ValueError: names the component and what is wrong with it.
    """
    if n_tokens % page_size:
        raise ValueError(f"insert takes whole pages: {n_tokens} tokens are no multiple of page size {page_size}")
    for name, segments in values.items():
        if name not in components:
            raise ValueError(f"unknown component {name!r}; this cache has: {', '.join(sorted(components)) or 'none'}")
        end = 0
        for place, segment in enumerate(segments):
            _check_segment(name, segment, end, n_tokens, page_size)
            if states is not None:
                _check_kind(name, segment, end if place else segment.start, page_size, name in states)
            end = segment.end


def _check_segment(name: str, segment: Segment, after: int, n_tokens: int, page_size: int) -> None:
    where = f"segment [{segment.start}, {segment.end}) of component {name!r}"
    if segment.start % page_size or segment.end % page_size:
        raise ValueError(f"{where} is not aligned to page size {page_size}")
    if not after <= segment.start <= segment.end <= n_tokens:
        raise ValueError(f"{where} overlaps its predecessor, is reversed, or ends after the {n_tokens} tokens offered")
    indices = segment.indices
    if indices.dtype != np.int32 or indices.ndim != 1:
        raise ValueError(f"{where}: indices must be one-dimensional int32, not {indices.dtype} of shape {indices.shape}")
    pages = (segment.end - segment.start) // page_size
    if len(indices) != pages and len(indices) != 1:
        raise ValueError(f"{where} covers {pages} pages but brings {len(indices)} indices")
    if len(indices) and int(indices.min()) < 1:
        raise ValueError(f"{where}: index {int(indices.min())} is not a page a caller can own (0 is the dummy page)")


def _check_kind(name: str, segment: Segment, after: int, page_size: int, is_state: bool) -> None:
    where = f"segment [{segment.start}, {segment.end}) of component {name!r}"
    needed = 1 if is_state else (segment.end - segment.start) // page_size
    if is_state and not segment.end:
        raise ValueError(f"{where}: there is no state before the first token")
    if len(segment.indices) != needed:
        raise ValueError(f"{where} needs {needed} indices and brings {len(segment.indices)}")
    if not is_state and segment.start != after:
        raise ValueError(f"{where} leaves a gap: the segment before it ends at {after}")
