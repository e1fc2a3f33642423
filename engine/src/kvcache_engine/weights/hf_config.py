"""Reads the sizes of a model from the fields of a config.json, one function for each family.

It knows transformers' names for them; it does not know the names of tensors.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kvcache_engine.errors import UnsupportedModelError
from kvcache_engine.model.config import Architecture, LayerConfig, ModelConfig
from kvcache_engine.model.delta_attention import DeltaAttention
from kvcache_engine.model.expert_mlp import ExpertMlp
from kvcache_engine.model.latent_attention import LatentAttention
from kvcache_engine.model.mixer import PageMixer
from kvcache_engine.model.mlp import DenseMlp
from kvcache_engine.model.softmax_attention import SoftmaxAttention
from kvcache_engine.weights.fields import Fields

_ARCHITECTURES: dict[str, Architecture] = {
    "LlamaForCausalLM": "llama",
    "Qwen3ForCausalLM": "qwen3",
    "Gemma3ForCausalLM": "gemma3",
    "MiMoV2FlashForCausalLM": "mimo_v2_flash",
    "KimiLinearForCausalLM": "kimi_linear",
}
_FULL, _LOCAL, _LINEAR = "full_attention", "sliding_attention", "linear_attention"


def hf_config(path: Path, raw: Mapping[str, Any]) -> ModelConfig:
    """`raw` holds the fields of the file `path`.

    Raises:
        UnsupportedModelError: another architecture, or a variant of a known one that computes differently.
        ModelFileError: a field is missing or senseless.
    """
    names = raw.get("architectures")
    name = names[0] if isinstance(names, list) and names else None
    if name not in _ARCHITECTURES:
        raise UnsupportedModelError(f"{path}: architecture {name!r}; this engine computes {', '.join(_ARCHITECTURES)}")
    architecture, fields = _ARCHITECTURES[name], Fields(path, raw.get)
    fields.refuse(
        hidden_act=(None, "silu"),
        hidden_activation=(None, "gelu_pytorch_tanh"),
        attention_bias=(None, False),
        mlp_bias=(None, False),
        use_sliding_window=(None, False),
        quantization_config=(None, {}),
    )
    ropes = _ropes(raw)
    for rope in ropes.values():
        if rope.get("rope_type", rope.get("type", "default")) != "default":
            raise UnsupportedModelError(f"{path}: rope_scaling = {rope!r} is not supported")
    layers, eps, tied = _READERS[architecture](fields, ropes)
    return ModelConfig(
        architecture=architecture,
        layers=layers,
        width=fields.size("hidden_size"),
        vocab_size=fields.size("vocab_size"),
        context_length=fields.size("max_position_embeddings"),
        norm_eps=fields.number("rms_norm_eps", eps),
        tied=tied if fields.value("tie_word_embeddings") is None else bool(fields.value("tie_word_embeddings")),
        embed_scale=fields.size("hidden_size") ** 0.5 if architecture == "gemma3" else 1.0,
    )


_Ropes = Mapping[str, Mapping[str, Any]]
_Read = tuple[tuple[LayerConfig, ...], float, bool]
"""The layers, and the defaults of `rms_norm_eps` and `tie_word_embeddings`."""


def _ropes(raw: Mapping[str, Any]) -> _Ropes:
    """Rotation parameters by kind of layer; models with one kind have them at the top."""
    given = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    return given if given and all(isinstance(value, dict) for value in given.values()) else {_FULL: given}


def _rope_base(fields: Fields, ropes: _Ropes, kind: str, key: str, default: float) -> float:
    return float(ropes.get(kind, {}).get("rope_theta") or fields.number(key, default))


def _llama(fields: Fields, ropes: _Ropes, *, qk_norm: bool = False) -> _Read:
    width, heads = fields.size("hidden_size"), fields.size("num_attention_heads")
    head_dim = fields.size("head_dim", width // heads)
    mixer = SoftmaxAttention(
        heads=heads,
        kv_heads=fields.size("num_key_value_heads", heads),
        key_dim=head_dim,
        value_dim=head_dim,
        rope_base=_rope_base(fields, ropes, _FULL, "rope_theta", 10000.0),
        rotated=head_dim,
        scale=head_dim**-0.5,
        qk_norm=qk_norm,
    )
    layer = LayerConfig(mixer, DenseMlp(fields.size("intermediate_size")))
    return (layer,) * fields.size("num_hidden_layers"), 1e-6, False


def _qwen3(fields: Fields, ropes: _Ropes) -> _Read:
    return _llama(fields, ropes, qk_norm=True)


def _gemma3(fields: Fields, ropes: _Ropes) -> _Read:
    fields.refuse(final_logit_softcapping=(None,), attn_logit_softcapping=(None,), use_bidirectional_attention=(None, False))
    heads, head_dim = fields.size("num_attention_heads"), fields.size("head_dim", 256)
    window = fields.size("sliding_window")
    bases = {
        _FULL: _rope_base(fields, ropes, _FULL, "rope_theta", 1e6),
        _LOCAL: _rope_base(fields, ropes, _LOCAL, "rope_local_base_freq", 1e4),
    }

    def layer(kind: str) -> LayerConfig:
        mixer = SoftmaxAttention(
            heads=heads,
            kv_heads=fields.size("num_key_value_heads", heads),
            key_dim=head_dim,
            value_dim=head_dim,
            rope_base=bases[kind],
            rotated=head_dim,
            scale=fields.number("query_pre_attn_scalar", 256) ** -0.5,
            window=window if kind == _LOCAL else None,
            qk_norm=True,
        )
        return LayerConfig(mixer, DenseMlp(fields.size("intermediate_size"), "gelu_tanh"), post_norms=True)

    layers = fields.size("num_hidden_layers")
    if fields.value("layer_types") is None:
        every = fields.size("sliding_window_pattern", 6)
        kinds = [_LOCAL if (i + 1) % every else _FULL for i in range(layers)]
    else:
        kinds = fields.kinds("layer_types", layers, (_FULL, _LOCAL))
    return tuple(layer(kind) for kind in kinds), 1e-6, True


def _mimo_v2_flash(fields: Fields, ropes: _Ropes) -> _Read:
    heads, kv_heads = fields.size("num_attention_heads"), fields.size("num_key_value_heads")
    key_dim = fields.size("head_dim")

    def mixer(kind: str) -> SoftmaxAttention:
        local = kind == _LOCAL
        share = float(ropes.get(kind, {}).get("partial_rotary_factor") or fields.number("partial_rotary_factor", 1.0))
        return SoftmaxAttention(
            heads=heads,
            kv_heads=fields.size("swa_num_key_value_heads", 2 * kv_heads) if local else kv_heads,
            key_dim=key_dim,
            value_dim=fields.size("v_head_dim", key_dim),
            rope_base=_rope_base(fields, ropes, kind, "swa_rope_theta" if local else "rope_theta", 1e4 if local else 5e6),
            rotated=int(key_dim * share),
            scale=key_dim**-0.5,
            window=fields.size("sliding_window") if local else None,
            sinks=local,
            value_scale=fields.number("attention_value_scale", 1.0),
        )

    layers = fields.size("num_hidden_layers")
    kinds = fields.kinds("layer_types", layers, (_FULL, _LOCAL))
    mlps = _expert_layers(fields, layers, fields.size("n_routed_experts", 1), shared=0)
    return tuple(LayerConfig(mixer(kind), mlp) for kind, mlp in zip(kinds, mlps, strict=True)), 1e-5, False


def _kimi_linear(fields: Fields, ropes: _Ropes) -> _Read:
    del ropes
    fields.refuse(q_lora_rank=(None,))

    def mixer(kind: str) -> DeltaAttention | PageMixer:
        if kind == _LINEAR:
            return DeltaAttention(
                heads=fields.size("linear_num_heads"),
                head_dim=fields.size("linear_head_dim"),
                kernel=fields.size("linear_conv_kernel_dim"),
            )
        return LatentAttention(
            heads=fields.size("num_attention_heads"),
            rank=fields.size("kv_lora_rank"),
            shared=fields.size("qk_rope_head_dim"),
            key_dim=fields.size("qk_nope_head_dim"),
            value_dim=fields.size("v_head_dim"),
        )

    layers = fields.size("num_hidden_layers")
    kinds = fields.kinds("layer_types", layers, (_LINEAR, _FULL))
    mlps = _expert_layers(fields, layers, fields.size("num_local_experts", 1), shared=fields.size("n_shared_experts"))
    return tuple(LayerConfig(mixer(kind), mlp) for kind, mlp in zip(kinds, mlps, strict=True)), 1e-5, False


def _expert_layers(fields: Fields, layers: int, experts: int, *, shared: int) -> list[DenseMlp | ExpertMlp]:
    """The MLP of each layer; the `shared` experts work as one that is as many times as wide."""
    # One group of experts only, and weights that are divided by their sum.
    fields.refuse(n_group=(None, 1), topk_group=(None, 1), norm_topk_prob=(True,))
    size = fields.size("moe_intermediate_size")
    sparse = ExpertMlp(
        experts=experts,
        chosen=fields.size("num_experts_per_tok"),
        size=size,
        scale=fields.number("routed_scaling_factor", 1.0),
        shared_size=shared * size,
    )
    dense = DenseMlp(fields.size("intermediate_size"))
    return [dense if kind == "dense" else sparse for kind in fields.kinds("mlp_layer_types", layers, ("dense", "sparse"))]


_READERS: dict[Architecture, Callable[[Fields, _Ropes], _Read]] = {
    "llama": _llama,
    "qwen3": _qwen3,
    "gemma3": _gemma3,
    "mimo_v2_flash": _mimo_v2_flash,
    "kimi_linear": _kimi_linear,
}
