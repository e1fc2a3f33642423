"""Reads one GGUF file: sizes, dequantised tensors and the tokenizer's fields.

It knows llama.cpp's names and the row order of its converter; it does not know how the model computes.
"""

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any, final

import gguf
import numpy as np
import numpy.typing as npt

from kvcache_engine.errors import ModelFileError, UnsupportedModelError
from kvcache_engine.model.config import Architecture, LayerConfig, ModelConfig
from kvcache_engine.model.mlp import DenseMlp
from kvcache_engine.model.params import global_shapes, layer_shapes
from kvcache_engine.model.softmax_attention import SoftmaxAttention
from kvcache_engine.tokenizer import Tokenizer
from kvcache_engine.weights.checkpoint import check_names, check_tensor
from kvcache_engine.weights.fields import Fields
from kvcache_engine.weights.gguf_tokenizer import gguf_tokenizer

_ARCHITECTURES: dict[str, Architecture] = {"llama": "llama", "qwen3": "qwen3", "gemma3": "gemma3"}
_GEMMA3_PATTERN, _GEMMA3_LOCAL_BASE = 6, 10000.0
_GLOBAL = {"embed": "token_embd.weight", "final_norm": "output_norm.weight", "output": "output.weight"}
_LAYER = {
    "attn_norm": "attn_norm",
    "q": "attn_q",
    "k": "attn_k",
    "v": "attn_v",
    "o": "attn_output",
    "q_norm": "attn_q_norm",
    "k_norm": "attn_k_norm",
    "mlp_norm": "ffn_norm",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
    "post_attn_norm": "post_attention_norm",
    "post_mlp_norm": "post_ffw_norm",
}
# Reading past the end of a damaged file surfaces as whatever the reader was doing there.
_READ_ERRORS = (ValueError, IndexError, KeyError, TypeError, OverflowError, UnicodeError, MemoryError, OSError)


@final
class GgufFile:
    """An opened GGUF file; implements `Checkpoint`. The file is memory-mapped: it must not change while this object lives."""

    def __init__(self, path: Path) -> None:
        """Raises:
        ModelFileError: not a GGUF file, truncated, or without a field or tensor that the model needs.
        UnsupportedModelError: another architecture, or a variant of a known one that computes differently.
        """
        self.path = path
        try:
            with path.open("rb") as file:
                magic = file.read(4)
            if magic != b"GGUF":
                raise ModelFileError(f"{path}: not a GGUF file: it begins with {magic!r}, not b'GGUF'")
            reader = gguf.GGUFReader(path)
        except _READ_ERRORS as error:
            if "GGMLQuantizationType" in str(error):
                raise UnsupportedModelError(f"{path}: unknown tensor encoding: {error}") from error
            raise ModelFileError(f"{path}: truncated or corrupt GGUF file: {error}") from error
        self._fields = reader.fields
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}
        self.config, self._head_dim = self._read_config()
        shapes = global_shapes(self.config)
        self._shapes = {_GLOBAL[field]: shape for field, shape in shapes.items()}
        for layer in range(len(self.config.layers)):
            self._shapes |= {_name(field, layer): shape for field, shape in layer_shapes(self.config, layer).items()}
        check_names(path, self._tensors, self._shapes)
        extra = sorted(set(self._tensors) - set(self._shapes))
        if extra:
            raise UnsupportedModelError(f"{path}: tensor {extra[0]} has no place in architecture {self.config.architecture}")

    @property
    def model_id(self) -> str:
        name = self._optional("general.name")
        return str(name) if name else self.path.stem

    def fetch(self, name: str, layer: int | None) -> npt.NDArray[np.float32]:
        full_name = _name(name, layer)
        tensor = self._tensors[full_name]
        try:
            value = np.asarray(gguf.dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        except NotImplementedError as error:
            raise UnsupportedModelError(
                f"{self.path}: tensor {full_name}: unsupported quantisation {tensor.tensor_type.name}"
            ) from error
        except _READ_ERRORS as error:
            raise ModelFileError(f"{self.path}: tensor {full_name} cannot be read: {error}") from error
        matrix = value.ndim == 2 and name != "embed"
        value = check_tensor(self.path, full_name, value.T if matrix else value, self._shapes[full_name])
        if name in ("q", "k") and self.config.architecture == "llama":
            value = _half_split(value, self._head_dim)
        return value

    def tokenizer(self) -> Tokenizer:
        """Raises ModelFileError or UnsupportedModelError, naming the field that is missing or unknown."""
        return gguf_tokenizer(self.path, self._optional)

    def digest(self) -> str:
        with self.path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def _optional(self, key: str) -> Any:
        """The value of a metadata field, or None when the file has none of that name."""
        field = self._fields.get(key)
        if field is None:
            return None
        try:
            return field.contents()
        except _READ_ERRORS as error:
            raise ModelFileError(f"{self.path}: field {key} cannot be read: {error}") from error

    def _read_config(self) -> tuple[ModelConfig, int]:
        """The sizes, and the channels of a head."""
        name = self._optional("general.architecture")
        if name not in _ARCHITECTURES:
            raise UnsupportedModelError(f"{self.path}: architecture {name!r}; this engine computes {', '.join(_ARCHITECTURES)}")
        fields = Fields(self.path, lambda key: self._optional(f"{name}.{key}"), lambda key: f"field {name}.{key}")
        refused = {"rope.scaling.type": (None, "none"), "expert_count": (None, 0)}
        fields.refuse(**refused, **({} if name == "gemma3" else {"attention.sliding_window": (None, 0)}))
        embedding = self._tensors.get(_GLOBAL["embed"])
        if embedding is None:
            raise ModelFileError(f"{self.path}: missing tensors: {_GLOBAL['embed']}; is the file complete?")
        width, heads = fields.size("embedding_length"), fields.size("attention.head_count")
        head_dim = fields.size("attention.key_length", width // heads)
        if fields.size("rope.dimension_count", head_dim) != head_dim:
            raise UnsupportedModelError(f"{self.path}: rotary positions on a part of each head are not supported")
        if fields.size("attention.value_length", head_dim) != head_dim:
            raise UnsupportedModelError(f"{self.path}: keys and values of different size are not supported")
        mixer = SoftmaxAttention(
            heads=heads,
            kv_heads=fields.size("attention.head_count_kv", heads),
            key_dim=head_dim,
            value_dim=head_dim,
            rope_base=fields.number("rope.freq_base", 10000.0),
            rotated=head_dim,
            scale=head_dim**-0.5,
            qk_norm=name in ("qwen3", "gemma3"),
        )
        layer = LayerConfig(mixer, DenseMlp(fields.size("feed_forward_length")))
        layers = (layer,) * fields.size("block_count")
        if name == "gemma3":
            layers = _gemma3_layers(layers, fields.size("attention.sliding_window"))
        config = ModelConfig(
            architecture=_ARCHITECTURES[name],
            layers=layers,
            width=width,
            vocab_size=int(embedding.shape[1]),
            context_length=fields.size("context_length"),
            norm_eps=fields.number("attention.layer_norm_rms_epsilon"),
            tied=_GLOBAL["output"] not in self._tensors,
            embed_scale=width**0.5 if name == "gemma3" else 1.0,
        )
        return config, head_dim


def _gemma3_layers(layers: tuple[LayerConfig, ...], window: int) -> tuple[LayerConfig, ...]:
    """What Gemma 3 has beyond the fields: every sixth layer sees all, the others a window, with a rotary base that no field
    holds."""

    def layer(i: int, given: LayerConfig) -> LayerConfig:
        mixer = given.mixer
        assert isinstance(mixer, SoftmaxAttention) and isinstance(given.mlp, DenseMlp)
        if (i + 1) % _GEMMA3_PATTERN:
            mixer = replace(mixer, window=window, rope_base=_GEMMA3_LOCAL_BASE)
        return LayerConfig(mixer, replace(given.mlp, activation="gelu_tanh"), post_norms=True)

    return tuple(layer(i, given) for i, given in enumerate(layers))


def _name(field: str, layer: int | None) -> str:
    return _GLOBAL[field] if layer is None else f"blk.{layer}.{_LAYER[field]}.weight"


def _half_split(matrix: npt.NDArray[np.float32], head_dim: int) -> npt.NDArray[np.float32]:
    """Undo the converter's row order: for "llama" it stores the two channels of each rotated pair next to each other.

    `matrix` is [in, heads * head_dim]; file column 2j + s of a head becomes column s * head_dim / 2 + j.
    """
    rows, columns = matrix.shape
    return matrix.reshape(rows, columns // head_dim, head_dim // 2, 2).swapaxes(2, 3).reshape(rows, columns)
