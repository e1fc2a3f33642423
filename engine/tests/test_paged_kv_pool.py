"""PagedKVPool by bit patterns: what is captured is what was there, for every dtype and layout."""

from typing import Any

import jax
import numpy as np
import pytest

from kvcache_core.contracts.pools import SKIP
from kvcache_engine.errors import ShardingError
from kvcache_engine.pools.paged_kv_pool import PagedKVPool, Pages

DTYPES = ["float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int8", "uint8"]
SIZES: dict[str, Any] = {"layers": 2, "total_pages": 21, "page_size": 4, "kv_heads": 4, "head_dim": 8}


def numbers(*pages: int) -> np.ndarray:
    return np.array(pages, dtype=np.int32)


def patterns(pool: PagedKVPool, pages: int, seed: int) -> Pages:
    """Random bits in every array: NaNs with payloads, infinities, subnormals and negative zeros among them."""
    rng = np.random.default_rng(seed)
    shape = (pages, *pool.page_shape)
    size = pool.stored_dtype.itemsize

    def array():
        bits = rng.integers(0, 256, (*shape, size), dtype=np.uint8)
        return jax.numpy.asarray(bits.view(pool.stored_dtype).reshape(shape))

    return Pages(tuple(array() for _ in range(pool.layers)), tuple(array() for _ in range(pool.layers)))


def rows(pages: Pages, at) -> list[np.ndarray]:
    """The raw bytes of the rows `at`, array by array."""
    return [np.ascontiguousarray(np.asarray(a)[at]).view(np.uint8) for arrays in pages for a in arrays]


def same(left: list[np.ndarray], right: list[np.ndarray]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(left, right, strict=True))


@pytest.mark.parametrize("devices", [1, 4])
@pytest.mark.parametrize("dtype", DTYPES)
def test_pages_come_back_bit_for_bit(dtype, devices, mesh_of) -> None:
    pool = PagedKVPool(**SIZES, dtype=dtype, mesh=mesh_of(devices))
    assert pool.heads_split == (devices == 4)
    order = numbers(5, 21, 1, 12, 7)
    written = patterns(pool, 5, seed=1)
    buffers = pool.scatter(pool.create(), order, written)
    assert same(rows(pool.gather(buffers, order), slice(5)), rows(written, slice(5)))
    # Another order, with a page twice and one never written.
    picked = pool.gather(buffers, numbers(12, 1, 1, 2))
    assert same(rows(picked, [0, 1, 2]), rows(written, [3, 2, 2]))
    assert all(not row.any() for row in rows(picked, [3]))
    # A gathered batch, padding included, goes back to other pages.
    buffers = pool.scatter(buffers, numbers(9, 8, 3), pool.gather(buffers, numbers(7, 5, 21)))
    assert same(rows(pool.gather(buffers, numbers(9, 8, 3)), slice(3)), rows(written, [4, 0, 1]))
    untouched = numbers(*sorted(set(range(1, 22)) - {5, 21, 1, 12, 7, 9, 8, 3}))
    assert all(not row.any() for row in rows(pool.gather(buffers, untouched), slice(len(untouched))))
    assert all(not np.asarray(a[0]).view(np.uint8).any() for arrays in buffers for a in arrays)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_every_bit_pattern_of_a_small_type(dtype) -> None:
    pool = PagedKVPool(layers=1, total_pages=3, page_size=16, kv_heads=4, head_dim=1024, dtype=dtype)
    size = pool.stored_dtype.itemsize
    bits = np.arange(16 * 4 * 1024, dtype=np.uint16 if size == 2 else np.uint32).astype(np.uint16 if size == 2 else np.uint8)
    page = jax.numpy.asarray(bits.view(pool.stored_dtype).reshape(1, *pool.page_shape))
    pages = Pages((page,), (page,))
    buffers = pool.scatter(pool.create(), numbers(2), pages)
    assert same(rows(pool.gather(buffers, numbers(2)), slice(1)), rows(pages, slice(1)))


def test_a_captured_page_keeps_its_content_when_the_page_is_rewritten() -> None:
    pool = PagedKVPool(**SIZES)
    old, new = patterns(pool, 2, seed=2), patterns(pool, 2, seed=3)
    buffers = pool.scatter(pool.create(), numbers(4, 6), old)
    captured = pool.gather(buffers, numbers(4, 6))
    buffers = pool.scatter(buffers, numbers(4, 6), new)
    assert same(rows(captured, slice(2)), rows(old, slice(2)))
    assert same(rows(pool.gather(buffers, numbers(4, 6)), slice(2)), rows(new, slice(2)))


@pytest.mark.parametrize("devices", [1, 4])
def test_a_page_rewritten_by_donation_right_after_its_gather_was_dispatched(devices, mesh_of) -> None:
    """FAULTS B3. Nothing waits in between: many copies are pending while the buffers they read from are donated and written."""
    pool = PagedKVPool(layers=4, total_pages=40, page_size=16, kv_heads=4, head_dim=64, mesh=mesh_of(devices))
    order = numbers(*range(1, 33))
    contents = [patterns(pool, 32, seed=seed) for seed in range(3)]
    expected = [rows(pages, slice(32)) for pages in contents]
    buffers = pool.scatter(pool.create(), order, contents[0])
    for _ in range(5):
        captured = []
        for turn in range(15):
            captured.append(pool.gather(buffers, order))
            buffers = pool.scatter(buffers, order, contents[(turn + 1) % 3])
        assert [same(rows(pages, slice(32)), expected[turn % 3]) for turn, pages in enumerate(captured)] == [True] * 15


@pytest.mark.parametrize(("kv_heads", "devices"), [(4, 1), (4, 4), (2, 4)])
def test_captured_pages_are_in_pinned_host_memory_and_laid_out_like_the_pool(kv_heads, devices, mesh_of) -> None:
    pool = PagedKVPool(**{**SIZES, "kv_heads": kv_heads}, mesh=mesh_of(devices))
    buffers = pool.create()
    captured, struct = pool.gather(buffers, numbers(3, 1, 2)), pool.host_struct()
    for array, described, source in zip(*map(jax.tree.leaves, (captured, struct, buffers)), strict=True):
        assert array.sharding.memory_kind == described.sharding.memory_kind == "pinned_host"
        assert array.sharding.is_equivalent_to(described.sharding, array.ndim)
        assert source.sharding.memory_kind == "device"
        assert array.sharding.with_memory_kind("device").is_equivalent_to(source.sharding, array.ndim)
        assert (1, *array.shape[1:]) == described.shape
        assert array.dtype == described.dtype
    assert jax.tree.structure(captured) == jax.tree.structure(struct)


@pytest.mark.parametrize("devices", [1, 4])
def test_the_calling_thread_never_runs_a_copy_itself(devices, mesh_of) -> None:
    """The CPU client runs programs of at most 1,000 operations in the thread that calls them, and copies count as none."""
    pool = PagedKVPool(**SIZES, mesh=mesh_of(devices))
    buffers = pool.create()
    one = numbers(1)
    captured = pool.gather(buffers, one)
    for program in (pool._gather.lower(buffers, one), pool._scatter.lower(buffers, one, captured)):
        analysis = program.compile().cost_analysis()
        assert analysis is not None
        assert analysis["flops"] > 1000


def test_skipped_rows_are_not_written() -> None:
    pool = PagedKVPool(**SIZES)
    written = patterns(pool, 4, seed=6)
    buffers = pool.scatter(pool.create(), numbers(SKIP, 21, SKIP, 7), written)
    assert same(rows(pool.gather(buffers, numbers(21, 7)), slice(2)), rows(written, [1, 3]))
    others = numbers(*sorted(set(range(1, 21)) - {7}))
    assert all(not row.any() for row in rows(pool.gather(buffers, others), slice(len(others))))
    assert pool.scatter(buffers, numbers(SKIP, SKIP), written) is buffers
    assert not buffers.k[0].is_deleted()


@pytest.mark.parametrize("devices", [1, 4])
@pytest.mark.parametrize("dtype", DTYPES)
def test_scatter_writes_in_place(dtype, devices, mesh_of) -> None:
    pool = PagedKVPool(**SIZES, dtype=dtype, mesh=mesh_of(devices))
    buffers = pool.create()
    pages = pool.gather(buffers, numbers(1, 2, 3))

    def places(held) -> list[int]:
        return [shard.data.unsafe_buffer_pointer() for arrays in held for a in arrays for shard in a.addressable_shards]

    before = places(buffers)
    after = pool.scatter(buffers, numbers(4, 5, 6), pages)
    assert places(after) == before
    assert buffers.k[0].is_deleted()


def test_nothing_to_move() -> None:
    pool = PagedKVPool(**SIZES)
    buffers = pool.create()
    nothing = pool.gather(buffers, numbers())
    assert pool.scatter(buffers, numbers(), nothing) is buffers


def test_what_does_not_fit_is_refused_before_anything_is_donated() -> None:
    pool = PagedKVPool(**SIZES)
    buffers, two = pool.create(), patterns(pool, 2, seed=4)
    for wrong in (0, 22, -2):
        with pytest.raises(ValueError, match="pages are 1 to 21"):
            pool.gather(buffers, numbers(1, wrong))
        with pytest.raises(ValueError, match="pages are 1 to 21"):
            pool.scatter(buffers, numbers(1, wrong), two)
    with pytest.raises(ValueError, match="pages are 1 to 21"):
        pool.gather(buffers, numbers(1, SKIP))
    with pytest.raises(ValueError, match="as many pages"):
        pool.scatter(buffers, numbers(1, 2, 3), two)
    with pytest.raises(ValueError, match="as many pages"):
        pool.scatter(buffers, numbers(1), Pages(two.k[:1], two.v[:1]))
    with pytest.raises(ValueError, match="do not fit"):
        pool.scatter(buffers, numbers(1), patterns(PagedKVPool(**SIZES, dtype="float16"), 1, seed=5))
    with pytest.raises(ValueError, match="do not fit"):
        pool.scatter(buffers, numbers(1), patterns(PagedKVPool(**{**SIZES, "page_size": 2}), 1, seed=5))
    assert not buffers.k[0].is_deleted()


@pytest.mark.parametrize(("kv_heads", "devices", "split"), [(4, 2, True), (2, 2, True), (2, 4, False), (1, 3, False)])
def test_heads_on_devices(kv_heads, devices, split, mesh_of) -> None:
    pool = PagedKVPool(**{**SIZES, "kv_heads": kv_heads}, mesh=mesh_of(devices))
    assert pool.heads_split == split
    shard = pool.create().k[0].addressable_shards[0].data
    assert shard.shape[2] == (kv_heads // devices if split else kv_heads)


@pytest.mark.parametrize(("kv_heads", "devices"), [(3, 2), (2, 3), (4, 3)])
def test_heads_that_fit_no_way_are_refused(kv_heads, devices, mesh_of) -> None:
    with pytest.raises(ShardingError, match=f"{kv_heads} kv heads cannot be laid out on {devices} devices"):
        PagedKVPool(**{**SIZES, "kv_heads": kv_heads}, mesh=mesh_of(devices))


def test_identity_tells_pools_apart_but_not_how_they_are_split(mesh_of) -> None:
    others: list[dict[str, Any]] = [
        *[{**SIZES, "dtype": dtype} for dtype in DTYPES[1:]],
        {**SIZES, "layers": 3},
        {**SIZES, "first_layer": 1},
        # The same bytes a page, differently laid out.
        {**SIZES, "kv_heads": 8, "head_dim": 4},
        {**SIZES, "page_size": 8, "head_dim": 4},
    ]
    identities = [PagedKVPool(**SIZES).identity, *(PagedKVPool(**sizes).identity for sizes in others)]
    assert len(set(identities)) == len(identities)
    assert PagedKVPool(**SIZES, mesh=mesh_of(4)).identity == identities[0]
    assert PagedKVPool(**{**SIZES, "total_pages": 5}).identity == identities[0]


def test_bytes_of_a_page() -> None:
    assert PagedKVPool(**SIZES).bytes_per_page == 2 * 2 * 4 * 4 * 8 * 4
    assert PagedKVPool(**SIZES, dtype="float8_e5m2").bytes_per_page == 2 * 2 * 4 * 4 * 8


def test_impossible_pools_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot store float64"):
        PagedKVPool(**SIZES, dtype="float64")
    with pytest.raises(ValueError, match="must be positive"):
        PagedKVPool(**{**SIZES, "layers": 0})
