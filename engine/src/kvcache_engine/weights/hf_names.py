"""Where transformers keeps each parameter, and how its layout differs from the one the model applies."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from kvcache_engine.model.config import Architecture

_GLOBAL = {"embed": "model.embed_tokens.weight", "final_norm": "model.norm.weight", "output": "lm_head.weight"}
_LAYER = {
    "attn_norm": "input_layernorm.weight",
    "q": "self_attn.q_proj.weight",
    "k": "self_attn.k_proj.weight",
    "v": "self_attn.v_proj.weight",
    "o": "self_attn.o_proj.weight",
    "q_norm": "self_attn.q_norm.weight",
    "k_norm": "self_attn.k_norm.weight",
    "sinks": "self_attn.sinks",
    "kv_down": "self_attn.kv_a_proj_with_mqa.weight",
    "kv_norm": "self_attn.kv_a_layernorm.weight",
    "kv_up": "self_attn.kv_b_proj.weight",
    "conv": "self_attn.conv1d.weight",
    "decay_down": "self_attn.forget_gate.f_a_proj.weight",
    "decay_up": "self_attn.forget_gate.f_b_proj.weight",
    "decay_bias": "self_attn.forget_gate.dt_bias",
    "decay_log": "self_attn.forget_gate.A_log",
    "beta": "self_attn.b_proj.weight",
    "out_gate_down": "self_attn.g_a_proj.weight",
    "out_gate_up": "self_attn.g_b_proj.weight",
    "out_norm": "self_attn.o_norm.weight",
    "mlp_norm": "post_attention_layernorm.weight",
    "gate": "mlp.gate_proj.weight",
    "up": "mlp.up_proj.weight",
    "down": "mlp.down_proj.weight",
    "router": "mlp.gate.weight",
    "router_bias": "mlp.gate.e_score_correction_bias",
    "experts_in": "mlp.experts.gate_up_proj",
    "experts_out": "mlp.experts.down_proj",
    "shared_gate": "mlp.shared_experts.gate_proj.weight",
    "shared_up": "mlp.shared_experts.up_proj.weight",
    "shared_down": "mlp.shared_experts.down_proj.weight",
}
_OTHERWISE: Mapping[Architecture, Mapping[str, str]] = {
    "gemma3": {
        "post_attn_norm": "post_attention_layernorm.weight",
        "mlp_norm": "pre_feedforward_layernorm.weight",
        "post_mlp_norm": "post_feedforward_layernorm.weight",
    }
}


def hf_name(architecture: Architecture, field: str, layer: int | None) -> str:
    """The tensor that holds the parameter `field` of `layer`, or one outside the layers."""
    if layer is None:
        return _GLOBAL[field]
    return f"model.layers.{layer}.{_OTHERWISE.get(architecture, {}).get(field) or _LAYER[field]}"


def as_applied(architecture: Architecture, field: str, value: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """A tensor of transformers in the layout of `model.params`: matrices are stored [out, in], and applied [in, out]."""
    if field == "embed":
        return value
    if field == "conv" and value.ndim == 3 and value.shape[1] == 1:
        return value[:, 0].T
    if field == "decay_log":
        return value.reshape(-1)
    if architecture == "gemma3" and field.endswith("norm"):
        # Stored minus one.
        return value + np.float32(1)
    return value.swapaxes(-1, -2) if value.ndim > 1 else value
