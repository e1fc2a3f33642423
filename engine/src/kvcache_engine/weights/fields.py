"""Reads numbers out of a model file's metadata, with errors that name the file and the field."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, final

from kvcache_engine.errors import ModelFileError, UnsupportedModelError


@final
class Fields:
    """`get(key)` gives a field's value, or None when there is none; `label` writes a key as the file does."""

    __slots__ = ("_get", "_label", "_path")

    def __init__(self, path: Path, get: Callable[[str], Any], label: Callable[[str], str] = str) -> None:
        self._path, self._get, self._label = path, get, label

    def value(self, key: str) -> Any:
        """As the file has it; None when it is not there."""
        return self._get(key)

    def number(self, key: str, default: float | None = None) -> float:
        """Raises ModelFileError for anything but a positive number."""
        value = self._get(key)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            raise ModelFileError(f"{self._path}: {self._label(key)} should be a positive number; it is {value!r}")
        return value

    def size(self, key: str, default: int | None = None) -> int:
        """A number as an integer. Raises ModelFileError as `number` does."""
        return int(self.number(key, default))

    def kinds(self, key: str, layers: int, allowed: tuple[str, ...]) -> list[str]:
        """One name of `allowed` for each layer.

        Raises:
            ModelFileError: another number of names.
            UnsupportedModelError: another name.
        """
        value = self._get(key)
        if not isinstance(value, list) or len(value) != layers:
            raise ModelFileError(
                f"{self._path}: {self._label(key)} should name a kind for each of {layers} layers; it is {value!r}"
            )
        names = [str(name) for name in value]
        for name in names:
            if name not in allowed:
                raise UnsupportedModelError(
                    f"{self._path}: {self._label(key)}: {name!r}; this engine computes {', '.join(allowed)}"
                )
        return names

    def refuse(self, **wanted: tuple[Any, ...]) -> None:
        """Raises UnsupportedModelError for the first field whose value is not one of those it may have."""
        for key, allowed in wanted.items():
            value = self._get(key)
            if value not in allowed:
                raise UnsupportedModelError(f"{self._path}: {self._label(key)} = {value!r} is not supported")
