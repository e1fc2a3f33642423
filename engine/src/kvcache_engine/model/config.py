"""The sizes and constants of one decoder. It does not know which file they came from."""

from dataclasses import dataclass
from typing import Literal

from kvcache_engine.errors import UnsupportedModelError

Architecture = Literal["llama", "qwen3"]


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A Llama-family decoder: grouped-query attention with rotary positions, RMS norms before each half, a SiLU-gated MLP.

    `width` is the size of the residual stream, `mlp_width` that of the MLP; both, like `head_dim`, in channels. `qk_norm`: keys
    and queries are RMS-normalised per head before the rotation (Qwen3). `tied`: the output matrix is the embedding.
    `context_length` in tokens. Frozen and hashable, so programs can be compiled for it.
    """

    architecture: Architecture
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp_width: int
    vocab_size: int
    context_length: int
    norm_eps: float
    rope_base: float
    tied: bool
    qk_norm: bool = False

    def __post_init__(self) -> None:
        """Raises UnsupportedModelError for sizes that no program here can compute with."""
        if self.kv_heads < 1 or self.heads % self.kv_heads or self.head_dim % 2:
            raise UnsupportedModelError(
                f"{self.heads} query heads cannot share {self.kv_heads} kv heads of {self.head_dim} channels: "
                "query heads must be a multiple of kv heads, and channels even"
            )
