"""The queue over a scripted pool: order, batching, isolation of failures, and the thread that may dispatch."""

import threading

import numpy as np
import pytest

from kvcache_core.transfer_queue import TransferQueue


class NumpyPool:
    """Pages of one number each; buffers are arrays that a scatter replaces. Scripted to fail for one index."""

    identity = b"numbers"

    def host_struct(self):
        raise AssertionError("the queue never asks")

    def page_arrays(self):
        raise AssertionError("the queue never asks")

    def __init__(self, bad=None):
        self.bad = bad
        self.calls = []

    def gather(self, buffers, indices):
        self.calls.append(("gather", indices.tolist()))
        if self.bad in indices:
            raise OSError("scripted")
        return buffers[indices].copy()

    def scatter(self, buffers, indices, pages):
        self.calls.append(("scatter", indices.tolist()))
        if self.bad in indices:
            raise OSError("scripted")
        result = buffers.copy()
        result[indices] = pages
        return result


def pages(*numbers):
    return np.array(numbers, np.int32)


def test_one_gather_per_component_and_rows_by_start():
    pools = {"full": NumpyPool(), "state": NumpyPool()}
    queue = TransferQueue(pools)
    a, b, c = (
        queue.enqueue_gather("full", pages(3, 1)),
        queue.enqueue_gather("state", pages(2)),
        queue.enqueue_gather("full", pages(4)),
    )
    assert queue.pending() == 3
    assert not a.dispatched
    queue.dispatch({"full": np.arange(10), "state": np.arange(10) * 10})
    assert pools["full"].calls == [("gather", [3, 1, 4])]
    assert a.pages is not None
    assert a.pages is c.pages
    assert b.pages is not None
    rows = [np.asarray(op.pages)[op.start : op.start + len(op.indices)].tolist() for op in (a, b, c)]
    assert rows == [[3, 1], [20], [4]]
    assert queue.pending() == 0


def test_a_page_is_read_before_it_is_written_in_the_same_dispatch():
    queue = TransferQueue({"full": NumpyPool()})
    written = queue.enqueue_scatter("full", pages(3), np.array([99]))
    saved = queue.enqueue_gather("full", pages(3))
    buffers = queue.dispatch({"full": np.arange(10)})
    assert saved.pages is not None
    assert saved.pages.tolist() == [3]
    assert buffers["full"][3] == 99
    assert written.dispatched
    assert written.pages is None  # nothing keeps the source alive once it was used


def test_indices_are_copied_when_queued():
    queue = TransferQueue({"full": NumpyPool()})
    indices = pages(3)
    op = queue.enqueue_gather("full", indices)
    indices[0] = 7
    queue.dispatch({"full": np.arange(10)})
    assert op.pages is not None
    assert op.pages.tolist() == [3]


def test_a_failing_scatter_harms_no_other():
    queue = TransferQueue({"full": NumpyPool(bad=5)})
    bad = queue.enqueue_scatter("full", pages(5), np.array([1]))
    good = queue.enqueue_scatter("full", pages(6), np.array([66]))
    buffers = queue.dispatch({"full": np.arange(10)})
    assert isinstance(bad.error, OSError)
    assert bad.dispatched
    assert good.error is None
    assert buffers["full"].tolist() == [0, 1, 2, 3, 4, 5, 66, 7, 8, 9]


def test_a_failing_gather_is_reported_to_every_operation_of_its_batch_and_to_no_other_component():
    queue = TransferQueue({"full": NumpyPool(bad=5), "state": NumpyPool()})
    lost = [queue.enqueue_gather("full", pages(4)), queue.enqueue_gather("full", pages(5))]
    fine = queue.enqueue_gather("state", pages(5))
    queue.dispatch({"full": np.arange(10), "state": np.arange(10)})
    assert all(isinstance(op.error, OSError) and op.dispatched for op in lost)
    assert fine.error is None


def test_cancelled_operations_are_not_dispatched():
    pool = NumpyPool()
    queue = TransferQueue({"full": pool})
    queue.enqueue_gather("full", pages(1)).cancelled = True
    queue.enqueue_scatter("full", pages(2), np.array([9])).cancelled = True
    buffers = queue.dispatch({"full": np.arange(10)})
    assert pool.calls == []
    assert buffers["full"].tolist() == list(range(10))


def test_only_the_thread_that_dispatched_first_dispatches():
    queue = TransferQueue({"full": NumpyPool()})
    queue.dispatch({"full": np.arange(10)})
    queue.enqueue_gather("full", pages(1))
    caught = []

    def work():
        try:
            queue.dispatch({"full": np.arange(10)})
        except RuntimeError as error:
            caught.append(str(error))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert caught == ["transfers are dispatched only by the thread that owns the engine"]
    assert queue.pending() == 1


def test_a_queue_may_be_built_in_another_thread_than_it_is_used_in():
    built = []
    thread = threading.Thread(target=lambda: built.append(TransferQueue({"full": NumpyPool()})))
    thread.start()
    thread.join()
    (queue,) = built
    op = queue.enqueue_gather("full", pages(1))
    queue.dispatch({"full": np.arange(10)})
    assert op.dispatched


def test_an_unknown_component_is_refused_when_queued():
    queue = TransferQueue({"full": NumpyPool()})
    with pytest.raises(KeyError, match=r"window.*there are: full"):
        queue.enqueue_gather("window", pages(1))
    with pytest.raises(KeyError, match="window"):
        queue.enqueue_scatter("window", pages(1), np.array([1]))
