"""RecurrentPool by bit patterns, and pools whose keys and values differ in size: what is captured is what was there."""

from typing import Any

import jax
import numpy as np
import pytest

from kvcache_conformance.tiny_hybrids import tiny_gemma3, tiny_kimi_linear, tiny_mimo_v2_flash
from kvcache_conformance.tiny_models import write_model_folder
from kvcache_core.contracts.pools import SKIP
from kvcache_engine.pools.model_pools import model_pools
from kvcache_engine.pools.paged_kv_pool import PagedKVPool
from kvcache_engine.pools.recurrent_pool import RecurrentPool, States
from kvcache_engine.weights.source import open_checkpoint

SIZES: dict[str, Any] = {"layer_numbers": (0, 1, 3), "total_pages": 9, "conv_shape": (3, 12), "state_shape": (2, 4, 4)}


def numbers(*slots: int) -> np.ndarray:
    return np.array(slots, np.int32)


def patterns(pool, kind, n: int, seed: int) -> Any:
    """Random bits in every array, NaNs with payloads among them."""
    rng = np.random.default_rng(seed)

    def array(shape: tuple[int, ...]):
        return jax.numpy.asarray(rng.integers(0, 2**32, (n, *shape), dtype=np.uint32).view(np.float32))

    return kind(*(tuple(array(shape) for _ in range(pool.layers)) for shape in pool.unit_shapes))


def bits(pages, rows) -> list[np.ndarray]:
    return [np.asarray(array)[rows].view(np.uint32) for arrays in pages for array in arrays]


def same(left: list[np.ndarray], right: list[np.ndarray]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(left, right, strict=True))


@pytest.mark.parametrize("devices", [1, 4])
def test_states_come_back_bit_for_bit(devices, mesh_of) -> None:
    pool = RecurrentPool(**SIZES, mesh=mesh_of(devices))
    written = patterns(pool, States, 3, seed=1)
    buffers = pool.scatter(pool.create(), numbers(9, SKIP, 2), written)
    captured = pool.gather(buffers, numbers(2, 9, 1))
    assert same(bits(captured, [0, 1]), bits(written, [2, 0]))
    assert not any(array.any() for array in bits(captured, [2]))
    # Later writes do not change what was captured, and a captured batch goes to other slots.
    buffers = pool.scatter(buffers, numbers(2, 9, 1), patterns(pool, States, 3, seed=2))
    assert same(bits(captured, [0, 1]), bits(written, [2, 0]))
    buffers = pool.scatter(buffers, numbers(5, 6), captured)
    assert same(bits(pool.gather(buffers, numbers(6, 5)), [0, 1]), bits(written, [0, 2]))
    assert all(not np.asarray(array[0]).any() for arrays in buffers for array in arrays)


def test_captured_states_are_what_the_pool_says_of_them(mesh_of) -> None:
    for mesh in (None, mesh_of(4)):
        pool = RecurrentPool(**SIZES, mesh=mesh)
        captured, struct = pool.gather(pool.create(), numbers(3, 1)), pool.host_struct()
        assert jax.tree.structure(captured) == jax.tree.structure(struct)
        for array, described in zip(jax.tree.leaves(captured), jax.tree.leaves(struct), strict=True):
            assert array.sharding.memory_kind == described.sharding.memory_kind == "pinned_host"
            assert array.sharding.is_equivalent_to(described.sharding, array.ndim)
            assert ((1, *array.shape[1:]), array.dtype) == (described.shape, described.dtype)
        leaves = jax.tree.leaves(struct)
        arrays = pool.page_arrays()
        assert [(1, *array.shape) for array in arrays] == [leaf.shape for leaf in leaves]
        assert [array.name for array in arrays] == [f"{part}.{i}" for part in ("conv", "recurrent") for i in (0, 1, 3)]
        assert pool.bytes_per_page == sum(leaf.size * 4 for leaf in leaves) == 3 * (3 * 12 + 2 * 4 * 4) * 4


def test_what_does_not_fit_is_refused_before_anything_is_donated() -> None:
    pool = RecurrentPool(**SIZES)
    buffers, two = pool.create(), patterns(pool, States, 2, seed=4)
    for wrong in (0, 10):
        with pytest.raises(ValueError, match="1 to 9"):
            pool.gather(buffers, numbers(1, wrong))
        with pytest.raises(ValueError, match="1 to 9"):
            pool.scatter(buffers, numbers(1, wrong), two)
    with pytest.raises(ValueError, match="as many states"):
        pool.scatter(buffers, numbers(1, 2, 3), two)
    with pytest.raises(ValueError, match="as many states"):
        pool.scatter(buffers, numbers(1), States(two.conv[:1], two.recurrent[:1]))
    with pytest.raises(ValueError, match="do not fit"):
        pool.scatter(buffers, numbers(1), States(two.recurrent, two.conv))
    assert pool.scatter(buffers, numbers(SKIP, SKIP), two) is buffers
    assert not buffers.conv[0].is_deleted()
    with pytest.raises(ValueError, match="must be positive"):
        RecurrentPool(**{**SIZES, "total_pages": 0})


def test_identities_tell_pools_apart() -> None:
    changes: list[dict[str, Any]] = [
        {},
        {"layer_numbers": (0, 1, 2)},
        {"layer_numbers": (0, 1)},
        {"conv_shape": (4, 12)},
        {"conv_shape": (3, 8)},
        {"state_shape": (4, 4, 2)},
    ]
    identities = [RecurrentPool(**(SIZES | change)).identity for change in changes]
    assert len(set(identities)) == len(identities)
    assert RecurrentPool(**{**SIZES, "total_pages": 4}).identity == identities[0]
    paged: dict[str, Any] = {"total_pages": 2, "page_size": 4, "kv_heads": 1, "head_dim": 8}
    kinds = [
        {"layers": 2},
        {"layers": 2, "value_dim": 4},
        {"layers": 2, "layer_numbers": (0, 2)},
        {"layers": 2, "layer_numbers": (1, 2)},
    ]
    identities = [PagedKVPool(**paged, **kind).identity for kind in kinds]
    assert len(set(identities)) == len(identities)
    assert PagedKVPool(**paged, layers=2, value_dim=8, layer_numbers=(0, 1)).identity == identities[0]
    assert PagedKVPool(**paged, layers=2, first_layer=1).identity == identities[3]


@pytest.mark.parametrize(
    ("tiny", "expected"),
    [
        (tiny_gemma3, {"full": (1, (8, 1, 32), (8, 1, 32)), "swa": (3, (8, 1, 32), (8, 1, 32))}),
        (tiny_mimo_v2_flash, {"full": (2, (8, 1, 24), (8, 1, 16)), "swa": (2, (8, 2, 24), (8, 2, 16))}),
        (tiny_kimi_linear, {"full": (1, (8, 1, 32), (8, 1, 8)), "recurrent": (3, (3, 96), (2, 16, 16))}),
    ],
)
def test_pools_of_a_model(tmp_path, tiny, expected) -> None:
    config = open_checkpoint(write_model_folder(tiny(), tmp_path / "m")).config
    pools = model_pools(config, 8, dict.fromkeys(config.components, 3))
    assert {name: (pool.layers, *pool.unit_shapes) for name, pool in pools.items()} == expected
    names = {array.name for pool in pools.values() for array in pool.page_arrays()}
    assert len(names) == 2 * len(config.layers)
    for pool in pools.values():
        assert [(1, *array.shape) for array in pool.page_arrays()] == [leaf.shape for leaf in jax.tree.leaves(pool.host_struct())]
    with pytest.raises(ValueError, match="this model has the components"):
        model_pools(config, 8, {"full": 3})
    latent_or_keys = pools["full"]
    written = patterns(latent_or_keys, type(latent_or_keys.create()), 2, seed=3)
    again = latent_or_keys.gather(
        latent_or_keys.scatter(latent_or_keys.create(), numbers(3, 1), type(latent_or_keys.host_struct())(*written)),
        numbers(1, 3),
    )
    assert same(bits(again, [0, 1]), bits(written, [1, 0]))
