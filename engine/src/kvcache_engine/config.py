"""The `engine:` section of a configuration file. Imports no jax, so that a file is validated in a moment."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class EngineConfig(BaseModel):
    """How the reference engine serves a model. Paths are relative to the configuration file's folder."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str = Field(description="a .gguf file, a folder with safetensors, the name smollm2-135m, or a hub id such as org/name")
    prompts: str | None = Field(default=None, description="prompts file, one JSON object a line; --prompts replaces it")
    device_tokens: int = Field(default=16384, ge=1, description="size of the device pool (L1) in tokens; whole pages")
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
