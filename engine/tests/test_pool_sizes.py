"""How large pools are and how far snapshots lie apart, for models with windows and states; and where tiny models come from."""

import dataclasses
import sys
from pathlib import Path

import pytest

from kvcache_conformance.tiny_by_name import TINY_MODELS as TINY
from kvcache_core import __version__
from kvcache_engine.config import EngineConfig
from kvcache_engine.errors import ModelFileError, ModelNotFoundError
from kvcache_engine.model.config import ModelConfig
from kvcache_engine.pools.model_pools import model_pools
from kvcache_engine.pools.pool_sizes import pool_totals, snapshot_positions, unit_bytes
from kvcache_engine.snapshots import SnapshotPositions
from kvcache_engine.weights.packaged import TINY_MODELS, tiny_model
from kvcache_engine.weights.source import find_model, open_checkpoint


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def configs(folder) -> dict[str, ModelConfig]:
    return {name: open_checkpoint(tiny_model(name, folder)).config for name in TINY_MODELS}


def settings(**values) -> EngineConfig:
    return EngineConfig.model_validate({"model": "test", **values})


def test_pages_of_every_component(configs) -> None:
    engine = settings(device_tokens=1000, max_running=2)
    assert pool_totals(configs["tiny-qwen3"], engine, 16) == {"full": 63}
    assert pool_totals(configs["tiny-gemma3"], engine, 16) == {"full": 63, "swa": 63}
    smaller = settings(device_tokens=1000, window_tokens=100)
    assert pool_totals(configs["tiny-mimo-v2-flash"], smaller, 16) == {"full": 63, "swa": 7}
    assert pool_totals(configs["tiny-qwen3"], smaller, 16) == {"full": 63}


def test_states_take_a_quarter_of_the_bytes_of_pages(configs) -> None:
    config = configs["tiny-kimi-linear"]
    # One layer of 40 channels for every token; three layers with 3 x 96 inputs of a convolution and 2 states of 16 x 16.
    assert unit_bytes(config, 16) == {"full": 16 * 40 * 4, "recurrent": 3 * (3 * 96 + 2 * 16 * 16) * 4}
    many = pool_totals(config, settings(device_tokens=16384, max_running=2), 16)
    assert many == {"full": 1024, "recurrent": 1024 * 2560 // 4 // 9600}
    # And never fewer than running requests need.
    assert pool_totals(config, settings(device_tokens=1024, max_running=8), 16) == {"full": 64, "recurrent": 32}
    assert pool_totals(config, settings(device_states=3), 16)["recurrent"] == 3


@pytest.mark.parametrize("name", TINY_MODELS)
def test_the_sizes_are_those_of_the_pools(configs, name) -> None:
    pools = model_pools(configs[name], 16, pool_totals(configs[name], settings(), 16))
    assert {component: pool.bytes_per_page for component, pool in pools.items()} == unit_bytes(configs[name], 16)


def test_snapshots_of_models_with_states_alone(configs) -> None:
    assert snapshot_positions(configs["tiny-gemma3"], settings(), 16) == SnapshotPositions(16)
    kimi = configs["tiny-kimi-linear"]
    assert snapshot_positions(kimi, settings(), 16) == SnapshotPositions(16, 4096)
    assert snapshot_positions(kimi, settings(snapshot_interval=100), 16) == SnapshotPositions(16, 112)


def test_where_a_prompt_is_cut() -> None:
    positions = SnapshotPositions(16, 64)
    ends, at = [], 0
    while at < 209:
        at = positions.chunk_end(at, 209, 100)
        ends.append(at)
    assert ends == [64, 128, 192, 208, 209]
    assert [n for n in range(1, 260) if positions.keeps(n, 209)] == [64, 128, 192, 208, 224, 240, 256]
    # Nothing is left below a page, and nothing at all without states.
    assert positions.chunk_end(0, 16, 100) == 16
    assert positions.chunk_end(0, 17, 100) == 16
    assert SnapshotPositions(16).chunk_end(0, 209, 100) == 100
    assert not SnapshotPositions(16).keeps(64, 209)


def test_a_tiny_model_is_written_once(folder) -> None:
    made = tiny_model("tiny-gemma3", folder)
    assert made == folder / f"tiny-{__version__}" / "tiny-gemma3"
    before = {path.name: path.stat().st_ino for path in made.iterdir()}
    assert tiny_model("tiny-gemma3", folder) == made
    assert {path.name: path.stat().st_ino for path in made.iterdir()} == before
    assert [path.name for path in folder.iterdir()] == [made.parent.name]
    assert set(TINY) == set(TINY_MODELS)


def test_a_tiny_model_without_the_package_that_makes_it(folder, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "kvcache_conformance", None)
    with pytest.raises(ModelNotFoundError, match="pip install kvcache-conformance"):
        find_model("tiny-gemma3")


def test_a_folder_that_cannot_hold_a_tiny_model(tmp_path) -> None:
    (tmp_path / "file").write_text("a file where the folder should be")
    with pytest.raises(ModelFileError, match="cannot be written there"):
        tiny_model("tiny-qwen3", tmp_path / "file")


def test_positions_are_plain_values() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        SnapshotPositions(16).page_size = 1  # type: ignore[misc]
