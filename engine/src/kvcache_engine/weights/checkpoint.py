"""What the loader needs from a model file, whatever its format."""

from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from kvcache_engine.errors import ModelFileError
from kvcache_engine.model.config import ModelConfig
from kvcache_engine.tokenizer import Tokenizer


class Checkpoint(Protocol):
    """An opened model. Opening it checked its sizes and that every tensor is there; a tensor's values are read by `fetch`."""

    @property
    def model_id(self) -> str:
        """A name for people and for storage keys."""
        ...

    @property
    def config(self) -> ModelConfig: ...

    def fetch(self, name: str, layer: int | None) -> npt.NDArray[np.float32]:
        """A parameter by its field name in `model.params`, dequantised, in the layout the model applies.

        Raises ModelFileError for a wrong shape or values that are not finite, UnsupportedModelError for an unknown encoding.
        """
        ...

    def tokenizer(self) -> Tokenizer: ...

    def digest(self) -> str:
        """sha256 of everything that decides what the model computes, in hex: a new one means cached pages are worthless."""
        ...


def check_names(path: Path, present: Iterable[str], needed: Iterable[str]) -> None:
    """Raises ModelFileError when `path` lacks a tensor of `needed`, naming the first few."""
    missing = sorted(set(needed) - set(present))
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise ModelFileError(f"{path}: missing tensors: {', '.join(missing[:3])}{more}; is the file complete?")


def check_tensor(path: Path, name: str, value: npt.NDArray[np.float32], shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """Return `value` if it has `shape` and is finite. Raises ModelFileError otherwise."""
    if value.shape != shape:
        raise ModelFileError(f"{path}: tensor {name} has shape {value.shape}; the model's sizes ask for {shape}")
    if not np.isfinite(value).all():
        raise ModelFileError(f"{path}: tensor {name} holds values that are not finite: the file is corrupt")
    return value
