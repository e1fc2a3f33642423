"""The key that a page has in a server: <prefix>:<model id>:<page size>:<64 hex>. It asks nobody."""

import re
from typing import Final, NamedTuple, final
from urllib.parse import quote_from_bytes, unquote_to_bytes

from kvcache_core.contracts.storage import StorageScope

_KEY: Final = re.compile(r"[0-9a-f]{64}")
_PAGE_SIZE: Final = re.compile(r"[1-9][0-9]{0,8}")


class PageName(NamedTuple):
    """What a server's key says of a page."""

    key: str
    model_id: str
    page_size: int


@final
class Names:
    """Of one prefix and scope.

    All of a model's id but letters, digits and `_.-~` is written as %XX: so it never ends the part it is in, and never has the
    braces that would put all pages of a model on one node of a cluster.
    """

    def __init__(self, prefix: str, scope: StorageScope) -> None:
        self._prefix = f"{prefix}:".encode("ascii")
        model = quote_from_bytes(scope.model_id.encode("utf-8", "surrogatepass"), safe="")
        self._scope = self._prefix + f"{model}:{scope.page_size}:".encode("ascii")

    def name(self, key: str) -> bytes:
        """Raises ValueError for a key that is none."""
        if _KEY.fullmatch(key) is None:
            raise ValueError(f"a key is 64 lowercase hex digits, not {key!r}")
        return self._scope + key.encode("ascii")

    @property
    def pattern(self) -> bytes:
        """What `SCAN` finds all pages of the prefix with, of all models; no prefix has a character that means something there."""
        return self._prefix + b"*"

    def parse(self, name: bytes) -> PageName | None:
        """The page of a server's key; None for a key that is somebody else's."""
        parts = name.removeprefix(self._prefix).split(b":") if name.startswith(self._prefix) else []
        if len(parts) != 3:
            return None
        try:
            model, size, key = parts[0], parts[1].decode("ascii"), parts[2].decode("ascii")
            model_id = unquote_to_bytes(model).decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            return None
        if _PAGE_SIZE.fullmatch(size) is None or _KEY.fullmatch(key) is None or _quoted(model_id) != model:
            return None
        return PageName(key, model_id, int(size))


def _quoted(model_id: str) -> bytes:
    return quote_from_bytes(model_id.encode("utf-8", "surrogatepass"), safe="").encode("ascii")
