"""Tiny models that keep more than the keys and values of full attention: sliding windows, latents, recurrent states.

Sizes, seeds and names of parameters only; how parameters are drawn is in `tiny_models`.
"""

from typing import Any

from kvcache_conformance.tiny_models import Shape, TinyModel

_WIDTH, _VOCAB, _LAYERS = 64, 256, 4
_COMMON: dict[str, Any] = {
    "vocab_size": _VOCAB,
    "hidden_size": _WIDTH,
    "intermediate_size": 128,
    "num_hidden_layers": _LAYERS,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
}
_EXPERTS: dict[str, Any] = {
    "moe_intermediate_size": 32,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
}
_FULL, _LOCAL, _LINEAR = "full_attention", "sliding_attention", "linear_attention"
_ROUTER_RULES = {"e_score_correction_bias": (0.0, 0.3), "sinks": (0.5, 1.5), "dt_bias": (-1.0, 1.0), "conv1d.weight": (0.0, 0.8)}


def tiny_gemma3() -> TinyModel:
    """Gemma 3 in small: local, local, full, local with a window of 16 tokens, 4 query heads and one kv head of 32, tied."""
    config = {
        **_COMMON,
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "num_key_value_heads": 1,
        "head_dim": 32,
        "rms_norm_eps": 1e-6,
        "sliding_window": 16,
        "query_pre_attn_scalar": 32,
        "tie_word_embeddings": True,
        "hidden_activation": "gelu_pytorch_tanh",
        "layer_types": [_LOCAL, _LOCAL, _FULL, _LOCAL],
        "rope_parameters": {_FULL: _rope(1000000.0), _LOCAL: _rope(10000.0)},
    }
    shapes: dict[str, Shape] = {"model.embed_tokens.weight": (_VOCAB, _WIDTH), "model.norm.weight": (_WIDTH,)}
    norms = ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")
    for layer in range(_LAYERS):
        at = f"model.layers.{layer}"
        shapes |= {f"{at}.{norm}.weight": (_WIDTH,) for norm in norms}
        shapes |= _projections(f"{at}.self_attn", 4 * 32, 32, 32, 4 * 32)
        shapes |= {f"{at}.self_attn.{name}_norm.weight": (32,) for name in "qk"}
        shapes |= _gated_mlp(f"{at}.mlp", 128)
    rules = {
        "post_attention_layernorm.weight": (4.0, 0.5),
        "post_feedforward_layernorm.weight": (4.0, 0.5),
        "embed_tokens.weight": (0.0, 0.35),
        # Stored minus one.
        "norm.weight": (0.0, 0.3),
    }
    return TinyModel("tiny-gemma3", 1102, config, shapes, rules)


def tiny_mimo_v2_flash() -> TinyModel:
    """MiMo-V2-Flash in small: full, local, local, full; keys of 24 and values of 16 channels, 1 kv head in full and 2 in local
    layers, sinks in local ones, a window of 16 tokens; layer 0 dense, the others 8 experts."""
    kinds = [_FULL, _LOCAL, _LOCAL, _FULL]
    config = {
        **_COMMON,
        **_EXPERTS,
        "architectures": ["MiMoV2FlashForCausalLM"],
        "model_type": "mimo_v2_flash",
        "num_key_value_heads": 1,
        "head_dim": 24,
        "v_head_dim": 16,
        "sliding_window": 16,
        "attention_value_scale": 0.707,
        "n_routed_experts": 8,
        "routed_scaling_factor": 1.0,
        "attention_bias": False,
        "layer_types": kinds,
        "rope_parameters": {
            _FULL: {**_rope(5000000.0), "partial_rotary_factor": 0.334},
            _LOCAL: {**_rope(10000.0), "partial_rotary_factor": 0.334},
        },
    }
    shapes = _outside()
    for layer, kind in enumerate(kinds):
        at = f"model.layers.{layer}"
        kv_heads = 2 if kind == _LOCAL else 1
        shapes |= _projections(f"{at}.self_attn", 4 * 24, kv_heads * 24, kv_heads * 16, 4 * 16)
        if kind == _LOCAL:
            shapes[f"{at}.self_attn.sinks"] = (4,)
        shapes |= _half_experts(at, layer, 8)
    return TinyModel("tiny-mimo-v2-flash", 1173, config, shapes, _ROUTER_RULES)


def tiny_kimi_linear() -> TinyModel:
    """Kimi Linear in small: three layers of Kimi Delta Attention (2 heads of 16, convolution of 4), then latent attention (32 + 8
    channels cached); layer 0 dense, the others 4 experts and a shared one."""
    kinds = [_LINEAR, _LINEAR, _LINEAR, _FULL]
    config = {
        **_COMMON,
        **_EXPERTS,
        "architectures": ["KimiLinearForCausalLM"],
        "model_type": "kimi_linear",
        "num_key_value_heads": 4,
        "kv_lora_rank": 32,
        "q_lora_rank": None,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 16,
        "v_head_dim": 16,
        "linear_head_dim": 16,
        "linear_num_heads": 2,
        "linear_conv_kernel_dim": 4,
        "num_local_experts": 4,
        "n_shared_experts": 1,
        "routed_scaling_factor": 2.446,
        "layer_types": kinds,
    }
    shapes = _outside()
    for layer, kind in enumerate(kinds):
        at = f"model.layers.{layer}"
        attention = f"{at}.self_attn"
        if kind == _LINEAR:
            shapes |= _projections(attention, 32, 32, 32, 32)
            shapes |= {
                f"{attention}.conv1d.weight": (96, 1, 4),
                f"{attention}.forget_gate.dt_bias": (32,),
                f"{attention}.forget_gate.A_log": (1, 1, 2, 1),
                f"{attention}.forget_gate.f_a_proj.weight": (16, _WIDTH),
                f"{attention}.forget_gate.f_b_proj.weight": (32, 16),
                f"{attention}.b_proj.weight": (2, _WIDTH),
                f"{attention}.g_a_proj.weight": (16, _WIDTH),
                f"{attention}.g_b_proj.weight": (32, 16),
                f"{attention}.o_norm.weight": (16,),
            }
        else:
            shapes |= {
                f"{attention}.q_proj.weight": (4 * 24, _WIDTH),
                f"{attention}.kv_a_proj_with_mqa.weight": (40, _WIDTH),
                f"{attention}.kv_a_layernorm.weight": (32,),
                f"{attention}.kv_b_proj.weight": (4 * 32, 32),
                f"{attention}.o_proj.weight": (_WIDTH, 4 * 16),
            }
        shapes |= _half_experts(at, layer, 4)
        if layer:
            shapes |= _gated_mlp(f"{at}.mlp.shared_experts", 32)
    return TinyModel("tiny-kimi-linear", 1146, config, shapes, _ROUTER_RULES)


def _rope(base: float) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": base}


def _outside() -> dict[str, Shape]:
    return {
        "model.embed_tokens.weight": (_VOCAB, _WIDTH),
        "model.norm.weight": (_WIDTH,),
        "lm_head.weight": (_VOCAB, _WIDTH),
    }


def _projections(at: str, q: int, k: int, v: int, o: int) -> dict[str, Shape]:
    rows = {f"{at}.{name}_proj.weight": (size, _WIDTH) for name, size in (("q", q), ("k", k), ("v", v))}
    return {**rows, f"{at}.o_proj.weight": (_WIDTH, o)}


def _gated_mlp(at: str, size: int) -> dict[str, Shape]:
    return {
        f"{at}.gate_proj.weight": (size, _WIDTH),
        f"{at}.up_proj.weight": (size, _WIDTH),
        f"{at}.down_proj.weight": (_WIDTH, size),
    }


def _half_experts(at: str, layer: int, experts: int) -> dict[str, Shape]:
    """The norms of a layer and its MLP: dense in layer 0, experts in the others."""
    norms: dict[str, Shape] = {f"{at}.{name}.weight": (_WIDTH,) for name in ("input_layernorm", "post_attention_layernorm")}
    if layer == 0:
        return {**norms, **_gated_mlp(f"{at}.mlp", 128)}
    return {
        **norms,
        f"{at}.mlp.experts.gate_up_proj": (experts, 2 * 32, _WIDTH),
        f"{at}.mlp.experts.down_proj": (experts, _WIDTH, 32),
        f"{at}.mlp.gate.weight": (experts, _WIDTH),
        f"{at}.mlp.gate.e_score_correction_bias": (experts,),
    }
