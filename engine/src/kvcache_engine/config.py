"""The `engine:` section of a configuration file. Imports no jax, so that a file is validated in a moment."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

_MODEL = (
    "a .gguf file, a folder with safetensors, a hub id such as org/name, or a name: smollm2-135m, gemma3-270m (optional package) "
    "or with random weights tiny-qwen3, tiny-gemma3, tiny-mimo-v2-flash, tiny-kimi-linear (from kvcache-conformance)"
)


class EngineConfig(BaseModel):
    """How the reference engine serves a model. Paths are relative to the configuration file's folder."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str = Field(description=_MODEL)
    prompts: str | None = Field(default=None, description="prompts file, one JSON object a line; --prompts replaces it")
    device_tokens: int = Field(default=16384, ge=1, description="size of the device pool (L1) in tokens; whole pages")
    window_tokens: int | None = Field(
        default=None, ge=1, description="the same for the pages of sliding windows; default: as many as device_tokens"
    )
    device_states: int | None = Field(
        default=None,
        ge=3,
        description="recurrent states that the device pool (L1) holds; default: what fits into a quarter of the pages' bytes, "
        "and at least 4 for every running request",
    )
    snapshot_interval: int | None = Field(
        default=None,
        ge=1,
        description="tokens between two snapshots of a recurrent state in a long prompt, rounded up to whole pages; default: "
        "4096, or more where a state takes more bytes than a quarter of the pages before it",
    )
    chunk_tokens: int = Field(default=256, ge=1, description="tokens of a prompt that one step computes")
    max_running: int = Field(default=8, ge=1, description="requests that run at the same time")
    context: int | None = Field(default=None, ge=2, description="tokens of prompt and answer together; default: the model's")
    max_tokens: int = Field(default=64, ge=1, description="tokens of an answer, for requests that do not say")
    temperature: float = Field(default=0.0, ge=0.0, allow_inf_nan=False, description="for requests that do not say; 0 is greedy")
    top_p: float = Field(default=1.0, gt=0.0, le=1.0, description="for requests that do not say")
    seed: int = Field(default=0, ge=0, lt=2**32, description="for requests that do not say")
    tensor: int = Field(default=1, ge=1, description="devices on the mesh axis `tensor` that share the KV heads")
    dtype: Literal["float32"] = Field(default="float32", description="type of weights, activations and pages")
    compilation_cache: str | None = Field(
        default="~/.cache/kvcache/jax", description="folder of JAX's persistent compilation cache; null for none"
    )
