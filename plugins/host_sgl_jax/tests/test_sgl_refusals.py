"""What cannot be served is refused at start, all reasons at once, and what can be is not."""

import dataclasses
from types import SimpleNamespace

import pytest

from kvcache_core.config.load import config_from_mapping
from kvcache_core.config.model import CacheConfig
from kvcache_core.errors import ConfigError
from kvcache_sgl_jax.refusals import HostShape, refuse_what_cannot_be_served

PLAIN = HostShape(windows=False, recurrent_states=False, speculative=False, one_buffer_a_layer=True)


def server_args(**changes):
    """sgl-jax's defaults of the settings that are looked at."""
    defaults = {
        "disaggregation_mode": "null",
        "pd_disaggregation": "",
        "multimodal": False,
        "nnodes": 1,
        "schedule_policy": "fcfs",
        "hicache_storage": "disable",
        "enable_unified_radix_tree": False,
        "disable_radix_cache": False,
        "enable_return_routed_experts": False,
    }
    return SimpleNamespace(**(defaults | changes))


def refusal(args=None, shape=PLAIN, config=None):
    with pytest.raises(ConfigError) as caught:
        refuse_what_cannot_be_served(args or server_args(), shape, config or CacheConfig())
    return str(caught.value)


@pytest.mark.parametrize("policy", ["fcfs", "lpm", "lof", "random"])
@pytest.mark.parametrize("hicache", [None, {"ratio": 4.0}])
def test_a_plain_server_is_served(policy, hicache):
    config = config_from_mapping({} if hicache is None else {"hicache": hicache})
    refuse_what_cannot_be_served(server_args(schedule_policy=policy), PLAIN, config)


@pytest.mark.parametrize(
    ("field", "reason"),
    [("windows", "sliding windows"), ("recurrent_states", "recurrent states"), ("speculative", "--speculative-algorithm")],
)
def test_models_and_decoding_it_cannot_serve(field, reason):
    changed = {name: getattr(PLAIN, name) for name in HostShape.__slots__} | {field: True}
    assert reason in refusal(shape=HostShape(**changed))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"disaggregation_mode": "prefill"}, "disaggregation"),
        ({"disaggregation_mode": "decode"}, "disaggregation"),
        ({"pd_disaggregation": "pathways"}, "disaggregation"),
        ({"multimodal": True}, "multimodal"),
        ({"multimodal": True, "disable_radix_cache": True}, "multimodal"),
        ({"hicache_storage": "none", "enable_unified_radix_tree": True}, "--kvcache-hicache-ratio"),
        ({"nnodes": 2}, "one node"),
        ({"schedule_policy": "dfs-weight"}, "fcfs or lpm"),
        ({"hicache_storage": "none"}, "--kvcache-hicache-ratio"),
        ({"enable_unified_radix_tree": True}, "cache_type: unified_radix_cache"),
        ({"disable_radix_cache": True}, "cache_type: chunk_cache"),
    ],
)
def test_settings_it_cannot_serve(changes, reason):
    text = refusal(server_args(**changes))
    assert reason in text
    assert text.count("\n- ") == 1


def test_l2_needs_a_pool_that_can_be_moved_and_l1_does_not():
    odd = HostShape(windows=False, recurrent_states=False, speculative=False, one_buffer_a_layer=False)
    refuse_what_cannot_be_served(server_args(), odd, CacheConfig())
    assert "remove hicache" in refusal(shape=odd, config=config_from_mapping({"hicache": {}}))


def test_expert_ids_stay_with_a_slot_so_l2_is_refused_and_l1_is_not():
    args = server_args(enable_return_routed_experts=True)
    refuse_what_cannot_be_served(args, PLAIN, CacheConfig())
    assert "--enable-return-routed-experts" in refusal(args, config=config_from_mapping({"hicache": {}}))


def test_the_settings_that_are_looked_at_are_sgl_jax_s_with_its_defaults():
    host = pytest.importorskip("sgl_jax.srt.server_args", reason="sgl-jax is not installed here (docs/sgl-jax.md)")
    defaults = {field.name: field.default for field in dataclasses.fields(host.ServerArgs)}
    ours = vars(server_args())
    assert {name: defaults.get(name, "missing") for name in ours} == ours


def test_storage_is_refused_because_it_would_be_written_and_never_read():
    assert "storage: none" in refusal(config=config_from_mapping({"hicache": {"storage": {"kind": "file"}}}))


@pytest.mark.parametrize("mode", ["prefill", "decode"])
def test_our_own_disaggregation_mode_is_refused(mode):
    assert f"disaggregation_mode is {mode}" in refusal(config=CacheConfig(disaggregation_mode=mode))


def test_everything_is_said_at_once():
    shape = HostShape(windows=True, recurrent_states=False, speculative=True, one_buffer_a_layer=True)
    text = refusal(server_args(nnodes=2, multimodal=True), shape)
    assert text.startswith("kvcache cannot serve this sgl-jax:\n- ")
    assert text.count("\n- ") == 4
