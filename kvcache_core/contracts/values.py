"""The checks every cache makes on offered `Values` before it takes anything. A broken offer is a host's bug: it is raised."""

from collections.abc import Collection

import numpy as np

from kvcache_core.contracts.results import Segment, Values


def check_values(n_tokens: int, values: Values, page_size: int, components: Collection[str]) -> None:
    """Check what needs no geometry: known components, page alignment, order, no overlap, index dtype and count.

    Gaps are the cache's to judge, because only it knows which components allow them. A segment with one index may be a unit at a
    node's end; otherwise there must be one index a page.

    Raises:
        ValueError: names the component and what is wrong with it.
    """
    if n_tokens % page_size:
        raise ValueError(f"insert takes whole pages: {n_tokens} tokens are no multiple of page size {page_size}")
    for name, segments in values.items():
        if name not in components:
            raise ValueError(f"unknown component {name!r}; this cache has: {', '.join(sorted(components)) or 'none'}")
        end = 0
        for segment in segments:
            _check_segment(name, segment, end, n_tokens, page_size)
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
