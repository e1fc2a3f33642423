"""Pages of several arrays with different shapes, and batches of them that are known by their bits."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from kvcache_unified_hicache.host_pool.base import HostKVPool
from kvcache_unified_hicache.host_pool.per_page import PerPagePool
from kvcache_unified_hicache.host_pool.preallocated import PreallocatedPool


class PageKind:
    """Keys and values of two layers with different head sizes, split over the devices by head, and a state on every device."""

    def __init__(self, dtype: str = "float32", devices: int = 1) -> None:
        mesh = jax.make_mesh((devices,), ("tensor",), axis_types=(AxisType.Auto,), devices=jax.devices()[:devices])
        split = NamedSharding(mesh, PartitionSpec(None, None, "tensor"), memory_kind="pinned_host")
        whole = NamedSharding(mesh, PartitionSpec(), memory_kind="pinned_host")

        def array(*shape: int, sharding: NamedSharding) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct((1, *shape), jax.numpy.dtype(dtype), sharding=sharding)

        self.struct = {
            "k": [array(4, 4, 6, sharding=split) for _ in range(2)],
            "v": [array(4, 4, 2, sharding=split) for _ in range(2)],
            "state": array(5, sharding=whole),
        }

    def batch(self, bits: dict[str, Any]) -> Any:
        """A batch in pinned host memory, as a gather would bring it."""
        return jax.tree.map(lambda leaf, array: jax.device_put(array, leaf.sharding), self.struct, bits)

    def bits(self, rows: int, seed: int) -> dict[str, Any]:
        """Random bits as numpy arrays, [rows, ...] each: NaNs with payloads, infinities and subnormals among them."""
        rng = np.random.default_rng(seed)

        def draw(leaf: jax.ShapeDtypeStruct) -> np.ndarray:
            shape = (rows, *leaf.shape[1:-1], leaf.shape[-1] * leaf.dtype.itemsize)
            return rng.integers(0, 256, shape, np.uint8).view(leaf.dtype)

        return jax.tree.map(draw, self.struct)


@pytest.fixture(scope="session")
def page_kind() -> type[PageKind]:
    return PageKind


@pytest.fixture(params=[PerPagePool, PreallocatedPool], ids=["per_page", "preallocated"])
def pool_kind(request: pytest.FixtureRequest) -> type[HostKVPool]:
    return request.param


def as_bytes(tree: Any) -> list[np.ndarray]:
    return [np.ascontiguousarray(leaf).view(np.uint8) for leaf in jax.tree.leaves(tree)]


@pytest.fixture(scope="session")
def same() -> Callable[[Any, Any], bool]:
    """Whether two pytrees of arrays have the same bytes."""

    def compare(left: Any, right: Any) -> bool:
        assert jax.tree.structure(left) == jax.tree.structure(right)
        return all(a.shape == b.shape and np.array_equal(a, b) for a, b in zip(as_bytes(left), as_bytes(right), strict=True))

    return compare


@pytest.fixture(scope="session")
def rows_of() -> Callable[[Any, Any], Any]:
    """The rows `at` of a pytree of numpy arrays."""
    return lambda tree, at: jax.tree.map(lambda array: array[at], tree)
