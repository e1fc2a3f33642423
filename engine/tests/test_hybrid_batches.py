"""Batches for models with windows or states: what the runner refuses, and what rows hand over to it."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from kvcache_conformance.tiny_hybrids import tiny_gemma3, tiny_kimi_linear
from kvcache_conformance.tiny_models import write_model_folder
from kvcache_core.transfer_queue import TransferQueue
from kvcache_engine.batch import Batch, StateSlots
from kvcache_engine.executor import ModelExecutor
from kvcache_engine.model.loaded import LoadedModel, load_model
from kvcache_engine.pools.model_pools import model_pools
from kvcache_engine.pools.pool_set import EnginePools
from kvcache_engine.request import Sampling
from kvcache_engine.runner import ModelRunner
from kvcache_engine.sampling import Sampler
from kvcache_engine.scheduler import Row
from kvcache_engine.state_slots import StateSlot


def numbers(*values) -> np.ndarray:
    return np.array(values, np.int32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def gemma3(folder) -> LoadedModel:
    return load_model(write_model_folder(tiny_gemma3(), folder / "gemma3"))


@pytest.fixture(scope="module")
def kimi(folder) -> LoadedModel:
    return load_model(write_model_folder(tiny_kimi_linear(), folder / "kimi"))


def run(host, batch: Batch) -> np.ndarray:
    buffers = host.pools.take()
    try:
        buffers, logits = host.runner.run(buffers, batch)
    finally:
        host.pools.give(buffers)
    return np.asarray(logits)


WINDOW = Batch(
    numbers([1, 2]), numbers(40), numbers(2), {"full": numbers([1, 2, 3, 4, 5, 6]), "swa": numbers([0, 0, 0, 4, 5, 6])}
)
"""Pages of 8, a window of 16: the query at 40 sees keys from 25 on, which lie in pages 3, 4 and 5."""


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ([0, 0, 0, 4, 5, 0], "a new token lies on the dummy page 0"),
        ([0, 0, 0, 0, 5, 6], "component 'swa': a page inside the window of 16 tokens is missing"),
        ([1, 2, 3, 4, 0, 6], "component 'swa': a page inside the window of 16 tokens is missing"),
        ([1, 2, 3, 4, 5], "pages of 8"),
        ([1, 2, 3, 4, 5, 7], "page numbers must be 0 to 6"),
    ],
)
def test_windows_that_are_refused(gemma3, bare_host, table, message) -> None:
    host = bare_host(gemma3, page_size=8, total_pages=6)
    changed = dataclasses.replace(WINDOW, page_tables={**WINDOW.page_tables, "swa": numbers(table)})
    with pytest.raises(ValueError, match=message):
        run(host, changed)
    assert np.isfinite(run(host, WINDOW)).all()


def test_components_that_are_not_the_models(gemma3, kimi, bare_host) -> None:
    host = bare_host(gemma3, page_size=8, total_pages=6)
    with pytest.raises(ValueError, match=r"pages of \['full', 'swa'\] and states of \[\]; the batch brings \['full'\]"):
        run(host, dataclasses.replace(WINDOW, page_tables={"full": WINDOW.page_tables["full"]}))
    host = bare_host(kimi, page_size=8, total_pages=6)
    with pytest.raises(ValueError, match=r"states of \['recurrent'\]; the batch brings \['full'\] and \[\]"):
        run(host, dataclasses.replace(WINDOW, page_tables={"full": WINDOW.page_tables["full"]}))


STATES = Batch(
    numbers([1, 2], [3, 0]),
    numbers(0, 7),
    numbers(2, 1),
    {"full": numbers([1], [2])},
    {"recurrent": StateSlots(numbers(0, 2), numbers(1, 3))},
)


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        ([0, 0], [1, 3], "source slots are 1 to 4; got"),
        ([0, 5], [1, 3], "source slots are 1 to 4; got"),
        ([0, 2], [0, 3], "target slots are 1 to 4; got"),
        ([0, 2], [1, 5], "target slots are 1 to 4; got"),
        ([0, 2], [3, 3], "two rows write their state to the same slot"),
        ([0], [1, 3], "2 rows"),
    ],
)
def test_slots_that_are_refused(kimi, bare_host, source, target, message) -> None:
    host = bare_host(kimi, page_size=8, total_pages=4)
    with pytest.raises(ValueError, match=message):
        run(host, dataclasses.replace(STATES, state_slots={"recurrent": StateSlots(numbers(*source), numbers(*target))}))
    assert np.isfinite(run(host, STATES)).all()


def test_rows_hand_over_where_states_are(kimi, bare_host) -> None:
    """The executor computes what the runner does: a prompt in one slot, then one token from there into another and in place."""
    host, direct = (bare_host(kimi, page_size=8, total_pages=4) for _ in range(2))
    executor = ModelExecutor(host.runner, host.pools, Sampler(2))
    greedy, table = Sampling(temperature=0.0, top_p=1.0, seed=0), {"full": numbers(1)}
    (request,) = direct.serve([[7, 8, 9]], 3)
    ids, start, drawn = numbers(7, 8, 9), 0, []
    for slots in (StateSlot(0, 1), StateSlot(1, 2), StateSlot(2, 2)):
        [token] = executor.execute([Row(ids, start, table, greedy, {"recurrent": slots})])
        drawn.append(token)
        ids, start = numbers(token), start + len(ids)
    assert drawn == request.greedy


def test_equal_layers_share_programs_and_nothing_is_compiled_after_the_first_batch(gemma3) -> None:

    pools = model_pools(gemma3.config, 8, {"full": 6, "swa": 6})
    runner = ModelRunner(gemma3, pools, 8, max_chunk=16, max_batch=2)
    gate = EnginePools(pools, TransferQueue(pools))
    counts = []
    for ids, start in ((numbers([1] * 5), 0), (numbers([1]), 40), (numbers([1] * 16), 8), (numbers([1], [2]), 24)):
        rows = len(ids)
        tables = numbers(*[[1, 2, 3, 4, 5, 6]] * rows)
        batch = Batch(ids, np.full(rows, start, np.int32), np.full(rows, ids.shape[1], np.int32), {"full": tables, "swa": tables})
        buffers, _ = runner.run(gate.take(), batch)
        gate.give(buffers)
        counts.append(runner.compile_count)
    assert len(set(counts)) == 1
    # Three shapes: one row of 16 tokens, one row and two rows of one. Each has an embedding, two kinds of layers, last logits.
    assert counts[0] == 3 * 4
