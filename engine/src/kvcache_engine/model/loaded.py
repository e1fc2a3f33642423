"""A model ready to run: its parameters on the devices, its tokenizer, and the identity that separates its cached pages."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from jax.sharding import Mesh

from kvcache_core.contracts.model_spec import ModelSpec
from kvcache_engine.model.config import ModelConfig
from kvcache_engine.model.params import Fetch, ModelParams, place_params, tensor_count
from kvcache_engine.tokenizer import Tokenizer
from kvcache_engine.weights.source import open_checkpoint

Progress = Callable[[str, int, int], None]
"""(what is being done, tensors done, tensors in all); called on the loading thread."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """`model_version` is a digest of the weights: pages cached under another one are never found. `mesh` holds `params`."""

    config: ModelConfig
    params: ModelParams
    tokenizer: Tokenizer
    model_id: str
    model_version: str
    mesh: Mesh | None = None

    @property
    def spec(self) -> ModelSpec:
        """The model as the cache's builder wants to know it."""
        return ModelSpec(self.model_id, self.model_version, self.config.model_class, self.config.component_specs())


def load_model(
    source: str | Path, progress: Progress | None = None, mesh: Mesh | None = None, dtype: npt.DTypeLike = np.float32
) -> LoadedModel:
    """Find, read, dequantise and place a model; `source` as in `weights.source.find_model`. `dtype`: of the parameters.

    Raises:
        ModelNotFoundError, ModelFileError, UnsupportedModelError: the file's fault, named.
        ShardingError: its heads cannot be laid out on `mesh`; before any tensor is read.
    """
    report = _silent if progress is None else progress
    report(f"opening {source}", 0, 0)
    checkpoint = open_checkpoint(source)
    config = checkpoint.config
    total = tensor_count(config)
    params = place_params(config, _counted(checkpoint.fetch, total, report), mesh, dtype)
    tokenizer = checkpoint.tokenizer()
    report("computing the model's version", total, total)
    return LoadedModel(config, params, tokenizer, checkpoint.model_id, checkpoint.digest(), mesh)


def _counted(fetch: Fetch, total: int, report: Progress) -> Fetch:
    done = 0

    def counted(name: str, layer: int | None) -> npt.NDArray[np.float32]:
        nonlocal done
        value = fetch(name, layer)
        done += 1
        report("reading tensors", done, total)
        return value

    return counted


def _silent(_what: str, _done: int, _total: int) -> None:
    pass
