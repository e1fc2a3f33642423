"""An engine under measurement: a storage backend of ours, and the client library's own best loop on the same server."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


class Library(ABC):
    """What somebody would write who had only the client library, and wanted it fast. No integrity, no keys of ours."""

    @abstractmethod
    def set(self, keys: Sequence[str], values: Sequence[bytes]) -> None: ...

    @abstractmethod
    def get(self, keys: Sequence[str]) -> Sequence[Any]: ...

    @abstractmethod
    def exists(self, keys: Sequence[str]) -> Sequence[Any]: ...

    @abstractmethod
    def delete(self, keys: Sequence[str]) -> None: ...

    @abstractmethod
    def close(self) -> None: ...


@dataclass(frozen=True)
class Engine:
    """`kind`, `options`: as in a configuration. `library`: on the same server."""

    kind: str
    options: Mapping[str, Any]
    library: Library
