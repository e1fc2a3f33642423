"""Where a page's file is: <root>/<model id>/<page size>/<2 hex>/<key>.npy. Names from outside become names of one folder each,
and never a path. It opens nothing.
"""

import hashlib
import os
import re
from typing import final
from urllib.parse import unquote

SHARDS = tuple(f"{number:02x}" for number in range(256))
SUFFIX = ".npy"
PRIVATE = ".kvcache"
"""The backend's own folder in the root. No model's folder begins with a dot."""

_KEY = re.compile(r"[0-9a-f]{64}")
_FILE = re.compile(r"[0-9a-f]{64}\.npy")
_PAGE_SIZE = re.compile(r"[1-9][0-9]{0,8}")
_UNSAFE = re.compile(rb"[^A-Za-z0-9._-]|^\.")
_LONGEST = 200


def folder_name(model_id: str) -> str:
    """A file name for any text, different for different texts: everything but letters, digits, `-`, `_` and `.` becomes %XX, as does
    a dot in front. What is empty or too long for a file name ends in `%-` and a hash, which the rule above never writes.
    """
    raw = model_id.encode("utf-8", "surrogatepass")
    name = _UNSAFE.sub(lambda found: b"%%%02X" % found[0][0], raw).decode("ascii")
    if 0 < len(name) <= _LONGEST:
        return name
    return f"{name[: _LONGEST - 80].rpartition('%')[0] or name[: _LONGEST - 80]}%-{hashlib.sha256(raw).hexdigest()}"


def model_id_of(name: str) -> str:
    """The model id of a folder's name; of a hashed one the name itself."""
    return name if "%-" in name else unquote(name, errors="surrogateescape")


def is_page_size(name: str) -> bool:
    """Whether a folder's name is one that `Layout` writes for a page size."""
    return _PAGE_SIZE.fullmatch(name) is not None


def key_of(shard: str, name: str) -> str | None:
    """The key of a file in a folder `shard`; None for a file that is no page."""
    return name[:64] if _FILE.fullmatch(name) and name.startswith(shard) else None


@final
class Layout:
    """Paths of one scope."""

    def __init__(self, root: str, model_id: str, page_size: int) -> None:
        if page_size < 1:
            raise ValueError(f"page_size must be at least 1, not {page_size}")
        self.root = root
        self.scope = os.path.join(root, folder_name(model_id), str(page_size))  # noqa: PTH118 - strings: a Path object costs more than a stat

    def shard(self, key: str) -> str:
        """The folder of a page. Raises ValueError for what is not a key."""
        if _KEY.fullmatch(key) is None:
            raise ValueError(f"a key is 64 lowercase hex digits, not {key!r}")
        return f"{self.scope}/{key[:2]}"

    def file(self, key: str) -> str:
        """The file of a page. Raises ValueError for what is not a key."""
        return f"{self.shard(key)}/{key}{SUFFIX}"
