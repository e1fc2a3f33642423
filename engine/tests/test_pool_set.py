"""EnginePools: the gate through which pool buffers are taken and given back."""

import numpy as np
import pytest

from kvcache_core.transfer_queue import TransferQueue
from kvcache_engine.pools.paged_kv_pool import PagedKVPool
from kvcache_engine.pools.pool_set import EnginePools


@pytest.fixture
def gate():
    pool = PagedKVPool(layers=1, total_pages=4, page_size=2, kv_heads=1, head_dim=4)
    queue = TransferQueue({"full": pool})
    return pool, queue, EnginePools({"full": pool}, queue)


def test_taking_dispatches_the_queue(gate) -> None:
    pool, queue, pools = gate
    page = np.array([3], dtype=np.int32)
    ones = pool.gather(pools.take()["full"], page)
    ones = type(ones)(*(tuple(a + 1 for a in arrays) for arrays in ones))
    pools.give({"full": pool.create()})
    written, read = queue.enqueue_scatter("full", page, ones), queue.enqueue_gather("full", page)
    assert not written.dispatched
    pools.give(pools.take())
    assert written.dispatched
    # Gathers are dispatched before scatters: this one saw the page as it was.
    assert not np.asarray(read.pages.k[0]).any()
    again = queue.enqueue_gather("full", page)
    pools.give(pools.take())
    assert (np.asarray(again.pages.k[0])[0] == 1).all()


def test_taken_twice_or_given_without_take(gate) -> None:
    _, _, pools = gate
    with pytest.raises(RuntimeError, match="without take"):
        pools.give({})
    buffers = pools.take()
    with pytest.raises(RuntimeError, match="already taken"):
        pools.take()
    with pytest.raises(ValueError, match="buffers of \\['full'\\]"):
        pools.give({"full": buffers["full"], "swa": buffers["full"]})
    pools.give(buffers)
    pools.give(pools.take())
