"""Finds a model by path, by short name or by hub id, and opens it. It does not know what is in a model file."""

from pathlib import Path
from typing import NamedTuple

from kvcache_engine.errors import ModelNotFoundError
from kvcache_engine.weights.checkpoint import Checkpoint
from kvcache_engine.weights.gguf_file import GgufFile
from kvcache_engine.weights.packaged import PACKAGED_MODELS, TINY_MODELS, packaged_model, tiny_model
from kvcache_engine.weights.safetensors_file import SafetensorsFolder

_HUB_FILES = ["*.safetensors", "*.safetensors.index.json", "config.json", "generation_config.json", "tokenizer*.json", "*.jinja"]


class FoundModel(NamedTuple):
    """`path`: a .gguf file or a model folder. `name`: how the source calls it, or None when only the file itself can say."""

    path: Path
    name: str | None = None


def find_model(source: str | Path) -> FoundModel:
    """Where the model is that `source` names, downloaded if it was a hub id.

    Tried in this order: an existing path, the name of a model in a package (`smollm2-135m`, `gemma3-270m`) or of a tiny one with
    random weights (`tiny-gemma3` and others), a hub id `org/name`.

    Raises ModelNotFoundError with what to do about it, ModelFileError when a packaged model cannot be put together.
    """
    name, path = str(source), Path(source).expanduser()
    # An empty string is a path too: the current folder, which nobody means by it.
    if name.strip() and path.exists():
        return FoundModel(path)
    if name in PACKAGED_MODELS:
        return FoundModel(packaged_model(name))
    if name in TINY_MODELS:
        return FoundModel(tiny_model(name), name)
    parts = name.split("/")
    if len(parts) == 2 and all(parts) and not name.startswith((".", "~")) and path.suffix != ".gguf":
        return FoundModel(_download(name), name)
    raise ModelNotFoundError(
        f"no model at {name!r}; give a .gguf file, a folder, a hub id org/name, or {', '.join((*PACKAGED_MODELS, *TINY_MODELS))}"
    )


def open_checkpoint(source: str | Path) -> Checkpoint:
    """Find and open a model. Raises what `find_model` and the file's own class raise."""
    path, name = find_model(source)
    if path.is_dir():
        return SafetensorsFolder(path, name)
    return GgufFile(path)


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
