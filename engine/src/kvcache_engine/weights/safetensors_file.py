"""Reads a model folder as Hugging Face lays it out: config.json, *.safetensors and tokenizer.json.

It knows transformers' names; it does not know how the model computes.
"""

import hashlib
import json
from pathlib import Path
from typing import Any, final

import numpy as np
import numpy.typing as npt
import tokenizers
from safetensors import SafetensorError, safe_open

from kvcache_engine.chat_template import ChatTemplate
from kvcache_engine.errors import ModelFileError, ModelNotFoundError, UnsupportedModelError
from kvcache_engine.model.params import global_shapes, layer_shapes
from kvcache_engine.tokenizer import Tokenizer
from kvcache_engine.weights.checkpoint import check_names, check_tensor
from kvcache_engine.weights.hf_config import hf_config
from kvcache_engine.weights.hf_names import as_applied, hf_name

_ENCODINGS = ("F32", "F16", "BF16")


@final
class SafetensorsFolder:
    """An opened model folder; implements `Checkpoint`."""

    def __init__(self, folder: Path, name: str | None = None) -> None:
        """`name`: the model's own, where the folder's is a mere revision.

        Raises:
        ModelNotFoundError: the folder holds no model.
        ModelFileError: a file is truncated or corrupt, or a tensor is missing.
        UnsupportedModelError: another architecture, or a variant of a known one that computes differently.
        """
        self.folder, self._hub_name = folder, name
        self._raw = _read_json(folder / "config.json")
        self.config = hf_config(folder / "config.json", self._raw)
        self._files = self._find_tensors()
        self._shapes = {self._name(field, None): shape for field, shape in global_shapes(self.config).items()}
        for layer in range(len(self.config.layers)):
            self._shapes |= {self._name(field, layer): shape for field, shape in layer_shapes(self.config, layer).items()}
        check_names(folder, self._files, self._shapes)

    @property
    def model_id(self) -> str:
        return self._hub_name or self.folder.resolve().name

    def fetch(self, name: str, layer: int | None) -> npt.NDArray[np.float32]:
        full_name = self._name(name, layer)
        path = self._files[full_name]
        try:
            with safe_open(path, framework="numpy") as file:
                encoding = file.get_slice(full_name).get_dtype()
                if encoding not in _ENCODINGS:
                    raise UnsupportedModelError(f"{path}: tensor {full_name} is stored as {encoding}, not as one of {_ENCODINGS}")
                value = np.asarray(file.get_tensor(full_name)).astype(np.float32, copy=False)
        except (SafetensorError, OSError, TypeError) as error:
            raise ModelFileError(f"{path}: tensor {full_name} cannot be read: {error}") from error
        return check_tensor(path, full_name, as_applied(self.config.architecture, name, value), self._shapes[full_name])

    def tokenizer(self) -> Tokenizer:
        """From tokenizer.json; the template and the end tokens from the files beside it.

        Raises ModelFileError when tokenizer.json is missing or unreadable.
        """
        path = self.folder / "tokenizer.json"
        if not path.is_file():
            raise ModelFileError(f"{path}: missing; this engine reads no other tokenizer file")
        try:
            inner = tokenizers.Tokenizer.from_file(str(path))
        # The Rust library reports an unreadable file as a bare Exception.
        except Exception as error:
            raise ModelFileError(f"{path}: not a tokenizer of the `tokenizers` library: {error}") from error
        extra = _read_optional_json(self.folder / "tokenizer_config.json")
        bos, eos = _token_text(extra.get("bos_token")), _token_text(extra.get("eos_token"))
        template = self._chat_template(extra)
        return Tokenizer(
            inner,
            end_ids=self._end_ids(inner, eos),
            chat_template=None if template is None else ChatTemplate(template, bos_token=bos, eos_token=eos),
        )

    def digest(self) -> str:
        whole = hashlib.sha256()
        for path in [self.folder / "config.json", *sorted(set(self._files.values()))]:
            with path.open("rb") as file:
                whole.update(path.name.encode() + b"\0" + hashlib.file_digest(file, "sha256").digest())
        return whole.hexdigest()

    def _name(self, field: str, layer: int | None) -> str:
        return hf_name(self.config.architecture, field, layer)

    def _find_tensors(self) -> dict[str, Path]:
        """tensor name -> file; of an index, when there is one, otherwise of every .safetensors file in the folder."""
        index = self.folder / "model.safetensors.index.json"
        if index.is_file():
            listed = _read_json(index).get("weight_map")
            if not isinstance(listed, dict):
                raise ModelFileError(f"{index}: no weight_map")
            names: list[str] = sorted({str(name) for name in listed.values()})
            unsafe = [name for name in names if Path(name).name != name]
            if unsafe:
                raise ModelFileError(f"{index}: {unsafe[0]!r} is not a file name in this folder")
            paths = [self.folder / name for name in names]
        else:
            paths = sorted(self.folder.glob("*.safetensors"))
        if not paths:
            raise ModelNotFoundError(f"{self.folder}: no .safetensors file in this folder")
        files: dict[str, Path] = {}
        for path in paths:
            try:
                with safe_open(path, framework="numpy") as file:
                    files |= dict.fromkeys(file.keys(), path)
            except FileNotFoundError as error:
                raise ModelFileError(f"{path}: named in the index, but missing; is the download complete?") from error
            except (SafetensorError, OSError) as error:
                raise ModelFileError(f"{path}: truncated or corrupt safetensors file: {error}") from error
        return files

    def _chat_template(self, extra: dict[str, Any]) -> str | None:
        path = self.folder / "chat_template.jinja"
        if path.is_file():
            return path.read_text(encoding="utf-8")
        template = extra.get("chat_template")
        return template if isinstance(template, str) else None

    def _end_ids(self, inner: tokenizers.Tokenizer, eos: str) -> frozenset[int]:
        found: set[int] = set()
        for raw in (_read_optional_json(self.folder / "generation_config.json"), self._raw):
            ids = raw.get("eos_token_id")
            found |= {int(i) for i in (ids if isinstance(ids, list) else [ids]) if i is not None}
        by_text = inner.token_to_id(eos) if eos else None
        return frozenset(found if by_text is None else found | {by_text})


def _token_text(token: Any) -> str:
    """A token in tokenizer_config.json is a string, or an object with the string in `content`."""
    return str(token.get("content", "") if isinstance(token, dict) else token or "")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ModelNotFoundError(
            f"{path}: missing; a model folder holds config.json, *.safetensors and tokenizer.json"
        ) from error
    except (ValueError, OSError) as error:
        raise ModelFileError(f"{path}: not a JSON file: {error}") from error
    if not isinstance(value, dict):
        raise ModelFileError(f"{path}: not a JSON object")
    return value


def _read_optional_json(path: Path) -> dict[str, Any]:
    return _read_json(path) if path.is_file() else {}
