"""The tiny models by name, for hosts that offer them to people, and with other contexts and windows than reference numbers have.

Weights do not depend on context and window: a parameter is a function of a seed and its name.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from kvcache_conformance.tiny_hybrids import tiny_gemma3, tiny_kimi_linear, tiny_mimo_v2_flash
from kvcache_conformance.tiny_models import TinyModel, tiny_qwen3, write_model_folder

TINY_MODELS: Final[Mapping[str, Callable[[], TinyModel]]] = {
    "tiny-qwen3": tiny_qwen3,
    "tiny-gemma3": tiny_gemma3,
    "tiny-mimo-v2-flash": tiny_mimo_v2_flash,
    "tiny-kimi-linear": tiny_kimi_linear,
}
CONTEXT: Final = 4096
"""Tokens. Enough for conversations; the models with reference numbers have 512."""


def write_tiny_model(name: str, folder: Path) -> Path:
    """Write the model `name` with a context of CONTEXT to `folder`, which is created. Raises KeyError for another name."""
    return write_model_folder(resized(TINY_MODELS[name]()), folder)


def resized(model: TinyModel, context: int = CONTEXT, window: int | None = None) -> TinyModel:
    """`model` with another context and, where it has one, another window, both in tokens."""
    config = {**model.config, "max_position_embeddings": context}
    if window is not None and "sliding_window" in config:
        config["sliding_window"] = window
    return replace(model, config=config)
