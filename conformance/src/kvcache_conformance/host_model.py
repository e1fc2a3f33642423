"""A host without a model: allocators, device memory by value, and the dependencies a cache is built from.

What a request "computes" is written as the content of its prefix, what a cache delivers is compared with it. It knows no cache.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import final

import numpy as np

from kvcache_conformance.geometries import geometry_of
from kvcache_conformance.page_content import Content
from kvcache_conformance.pool_model import Memory, NumpyPool, NumpyPoolSet, StrictAllocator
from kvcache_core.contracts.model_spec import ComponentSpec, ModelClass, ModelSpec
from kvcache_core.contracts.pools import DevicePool
from kvcache_core.contracts.results import Indices
from kvcache_core.deps import CacheDeps
from kvcache_core.transfer_queue import TransferQueue


@final
class HostModel:
    """`page_size` in tokens; `totals`: pages (states) of each component's pool, or one number for all. `make_pool(component)`:
    the device pools, which take and give numpy memory (`NumpyPool`) but may hand pages to the host tier in another form.
    `snapshot_interval`: tokens between two states that a request keeps, besides the last boundary of each forward and the one
    before its prompt's last token; 0 for the last boundary of each forward alone."""

    def __init__(
        self,
        page_size: int,
        components: Sequence[ComponentSpec],
        totals: int | Mapping[str, int],
        make_pool: Callable[[str], DevicePool] = NumpyPool,
        snapshot_interval: int = 0,
    ) -> None:
        self.page_size = page_size
        self.snapshot_interval = snapshot_interval
        self.components = tuple(components)
        self.geometries = {spec.name: geometry_of(spec) for spec in components}
        sizes = dict.fromkeys(self.geometries, totals) if isinstance(totals, int) else dict(totals)
        self.allocators = {name: StrictAllocator(sizes[name]) for name in self.geometries}
        self.pools = {name: make_pool(name) for name in self.geometries}
        self.queue = TransferQueue(self.pools)
        self.pool_set = NumpyPoolSet(sizes, self.queue)

    def deps(self) -> CacheDeps:
        """What the builder, or a cache's factory, is given."""
        model_class: ModelClass = "full_attention"
        if any(spec.state_shape is not None for spec in self.components):
            model_class = "hybrid_recurrent"
        elif any(spec.window is not None for spec in self.components):
            model_class = "swa"
        return CacheDeps(
            model=ModelSpec("by-value", "1", model_class, self.components),
            page_size=self.page_size,
            allocators=self.allocators,
            pools=self.pools,
            pool_set=self.pool_set,
            queue=self.queue,
        )

    def write(self, component: str, index: int, content: Content) -> None:
        """A forward that fills one page, through the gate that dispatches queued transfers first."""
        assert not self.allocators[component].is_free(index) and index > 0, f"a write to page {index}, which nobody owns"
        buffers = dict(self.pool_set.take())
        buffers[component][index] = content
        self.pool_set.give(buffers)

    def read(self, component: str, indices: Indices | Sequence[int]) -> Memory:
        """A copy of some pages."""
        buffers = self.pool_set.take()
        pages: Memory = buffers[component][np.asarray(indices, np.intp)]
        self.pool_set.give(buffers)
        return pages

    def peek(self, component: str, indices: Indices | Sequence[int]) -> Memory:
        """`read` without the gate: nothing is dispatched."""
        return self.pool_set.peek(component, np.asarray(indices, np.int32))

    def idle(self) -> None:
        """A step without a forward: what is queued is dispatched."""
        self.pool_set.give(self.pool_set.take())
