"""Tiny models rebuilt from seeds: weights nobody stores, the same on every machine, for which reference numbers exist.

A parameter is a function of a seed and its name only, from the raw 64-bit stream of PCG64, which numpy keeps stable. Models
are written as Hugging Face folders, so that a host loads them the way it loads real ones. It knows no host and no jax.
"""

import hashlib
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file  # pyright: ignore[reportUnknownVariableType]  # annotated with a bare PathLike

Array = npt.NDArray[np.float32]
Shape = tuple[int, ...]

Rule = tuple[float, float]
"""(a, b): a parameter is a + b r, where r is uniform in [-1, 1)."""
_SHARP = ("q_proj.weight", "k_proj.weight", "lm_head.weight")
"""Matrices with a larger gain: attention and output distributions would be nearly flat otherwise."""
_TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)


@dataclass(frozen=True, slots=True)
class TinyModel:
    """`config` holds the fields of config.json, `shapes` the parameters by their transformers names, matrices [out, in]. `rules`:
    by the end of a name, for parameters that are drawn otherwise than the rest."""

    name: str
    seed: int
    config: Mapping[str, Any]
    shapes: Mapping[str, Shape]
    rules: Mapping[str, Rule] = field(default_factory=dict[str, Rule])


def tiny_qwen3(head_dim: int = 32) -> TinyModel:
    """Qwen3 in small: 2 layers of width 64, 4 query and 2 kv heads of 32 with per-head norms, untied, 256 tokens.

    Another `head_dim` is for hosts whose kernels want whole vectors; there are no reference numbers for it.
    """
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": 256,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": head_dim,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "hidden_act": "silu",
        "use_sliding_window": False,
    }
    shapes: dict[str, Shape] = {
        "model.embed_tokens.weight": (256, 64),
        "model.norm.weight": (64,),
        "lm_head.weight": (256, 64),
    }
    for layer in range(2):
        at = f"model.layers.{layer}"
        shapes |= {
            f"{at}.input_layernorm.weight": (64,),
            f"{at}.self_attn.q_proj.weight": (4 * head_dim, 64),
            f"{at}.self_attn.k_proj.weight": (2 * head_dim, 64),
            f"{at}.self_attn.v_proj.weight": (2 * head_dim, 64),
            f"{at}.self_attn.o_proj.weight": (64, 4 * head_dim),
            f"{at}.self_attn.q_norm.weight": (head_dim,),
            f"{at}.self_attn.k_norm.weight": (head_dim,),
            f"{at}.post_attention_layernorm.weight": (64,),
            f"{at}.mlp.gate_proj.weight": (128, 64),
            f"{at}.mlp.up_proj.weight": (128, 64),
            f"{at}.mlp.down_proj.weight": (64, 128),
        }
    return TinyModel("tiny-qwen3", 1101, config, shapes)


def tiny_tensors(model: TinyModel) -> dict[str, Array]:
    """Every parameter of `model`, float32, by name."""
    return {name: _parameter(model, name, shape) for name, shape in model.shapes.items()}


def tensors_digest(tensors: Mapping[str, Array]) -> str:
    """sha256, in hex, over the name and the little-endian bytes of every tensor in name order."""
    whole = hashlib.sha256()
    for name in sorted(tensors):
        whole.update(name.encode())
        whole.update(np.ascontiguousarray(tensors[name], dtype="<f4").tobytes())
    return whole.hexdigest()


def write_model_folder(model: TinyModel, folder: Path, *, shards: int = 1) -> Path:
    """Write config.json, the weights (with an index when there are several `shards`) and a byte-level tokenizer to `folder`.

    `folder` is created. Token i of the tokenizer is the byte i; no token ends an answer.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tensors = tiny_tensors(model)
    _write_json(folder / "config.json", dict(model.config))
    _write_json(folder / "tokenizer.json", _byte_tokenizer())
    _write_json(folder / "tokenizer_config.json", {"chat_template": _TEMPLATE})
    if shards == 1:
        save_file(tensors, folder / "model.safetensors")
        return folder
    names = sorted(tensors)
    weight_map: dict[str, str] = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        part = {name: tensors[name] for name in names[shard::shards]}
        save_file(part, folder / file)
        weight_map |= dict.fromkeys(part, file)
    _write_json(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": weight_map})
    return folder


def token_ids(model: TinyModel, n: int) -> npt.NDArray[np.int32]:
    """The ids of the prompt that a model's reference numbers belong to: `n` of a vocabulary of 256."""
    return ((_stream(model.seed, "token_ids", n) >> np.uint64(32)) % np.uint64(256)).astype(np.int32)


def _parameter(model: TinyModel, name: str, shape: Shape) -> Array:
    """Norms lie around 1, the embedding in [-1, 1), matrices have the variance that keeps activations at one scale."""
    # 24 bits are exact in float32, so no rounding mode can make two machines differ.
    uniform = (_stream(model.seed, name, int(np.prod(shape))) >> np.uint64(40)).astype(np.float64) / 2**24
    r = (2 * uniform - 1).astype(np.float32).reshape(shape)
    if name.endswith("A_log"):
        # The decay rates themselves are uniform in [0.05, 2).
        return np.log(0.05 + 1.95 * (r.astype(np.float64) + 1) / 2).astype(np.float32)
    for suffix, (a, b) in model.rules.items():
        if name.endswith(suffix):
            return np.float32(a) + np.float32(b) * r
    if name.endswith("embed_tokens.weight"):
        return r
    if "norm" in name.split(".")[-2]:
        return np.float32(1) + np.float32(0.3) * r
    gain = 2.0 if name.endswith(_SHARP) else 1.2
    return np.float32(gain * np.sqrt(3 / shape[-1])) * r


def _stream(seed: int, name: str, n: int) -> npt.NDArray[np.uint64]:
    return np.random.PCG64(np.random.SeedSequence([seed, zlib.crc32(name.encode())])).random_raw(n)


def _byte_tokenizer() -> dict[str, Any]:
    """A tokenizer.json of 256 tokens: byte-level BPE without merges, so that every byte string has ids."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    # GPT-2's alphabet: printable bytes stand for themselves, the others for the code points from 256 on.
    letters = {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": None,
        "decoder": level,
        "model": {"type": "BPE", "vocab": {letters[byte]: byte for byte in range(256)}, "merges": []},
    }


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1), encoding="utf-8")
