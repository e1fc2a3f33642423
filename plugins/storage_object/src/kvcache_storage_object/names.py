"""Names of objects: from a page's key and scope, and back. A bijection, so that no two models share a place. It opens nothing."""

import re
from typing import NamedTuple, final
from urllib.parse import quote, unquote

from kvcache_core.contracts.storage import StorageScope

_KEY = re.compile(r"[0-9a-f]{64}")
_SEGMENT_CHARS = 100
"""A model id may be long, and some servers (SeaweedFS, MinIO) keep a segment of a name as a file of that name."""
_EMPTY = ["!"]
_LONGEST = 1024
"""Bytes in the name of an object, in all three services."""

MARKER = ".kvcache-store.json"
"""Beside the pages: it says that here is a store, and of which format. No model's folder begins with a dot."""


class Named(NamedTuple):
    model_id: str
    page_size: int
    key: str


@final
class Names:
    """`<prefix><model id>/<page size>/<2 hex>/<key>`."""

    def __init__(self, prefix: str, scope: StorageScope) -> None:
        """`prefix`: empty, or with a slash at its end. Raises ValueError: the model id is too long for an object's name."""
        self.prefix = prefix
        self.marker = f"{prefix}{MARKER}"
        self._folder = f"{prefix}{'/'.join(_segments(scope.model_id))}/{scope.page_size}/"
        if len(self._folder) + 3 + 64 > _LONGEST:
            raise ValueError(f"the model id is too long: with it an object's name has more than {_LONGEST} characters")

    def of(self, key: str) -> str:
        """Raises ValueError: it is no key."""
        if not _KEY.fullmatch(key):
            raise ValueError(f"{key!r} is not a key of 64 lowercase hex digits")
        return f"{self._folder}{key[:2]}/{key}"

    def parse(self, name: str) -> Named | None:
        """Which page an object is; None for one that is none."""
        parts = name[len(self.prefix) :].split("/")
        if not name.startswith(self.prefix) or len(parts) < 4:
            return None
        *segments, page_size, start, key = parts
        if not _KEY.fullmatch(key) or start != key[:2] or not re.fullmatch(r"[1-9][0-9]{0,9}", page_size):
            return None
        model_id = _model_id(segments)
        return Named(model_id, int(page_size), key) if _segments(model_id) == segments else None


def _model_id(segments: list[str]) -> str:
    return "" if segments == _EMPTY else unquote("".join(segments).replace("!", "%"), errors="surrogatepass")


def _segments(model_id: str) -> list[str]:
    """The parts of a name that stand for a model id: `!` and two hex digits for what is not safe everywhere."""
    text = quote(model_id, safe="", errors="surrogatepass").replace("~", "%7E").replace("%", "!")
    cut = [text[at : at + _SEGMENT_CHARS] for at in range(0, len(text), _SEGMENT_CHARS)] or _EMPTY
    return [f"!2E{segment[1:]}" if segment.startswith(".") else segment for segment in cut]
