"""Where a page's file is: <root>/<model id>/<page size>/<2 hex>/<key>.npy. Names from outside become names of one folder each,
and never a path. It opens nothing.
"""

import hashlib
import re
from typing import NamedTuple, final
from urllib.parse import unquote

SHARDS = tuple(f"{number:02x}" for number in range(256))
SUFFIX = ".npy"
PRIVATE = ".kvcache"
"""The backend's own folder in the root: locks, books, pages being written. No model's folder begins with a dot."""
NAME_FILE = "model_id.txt"
"""In a model's folder whose name is a hash: the model id in UTF-8."""

_KEY = re.compile(r"[0-9a-f]{64}")
_FILE = re.compile(r"[0-9a-f]{64}\.npy")
_PAGE_SIZE = re.compile(r"[1-9][0-9]{0,8}")
_UNSAFE = re.compile(rb"[^A-Za-z0-9._-]|^\.")
_HASHED = "%-"
_HASHED_NAME = re.compile(r"(?:(?!\.)[A-Za-z0-9._%-]{100}|)%-[0-9a-f]{64}")
_LONGEST = 200


def folder_name(model_id: str) -> str:
    """A file name for any text, another one for every text: all but letters, digits, `-`, `_` and `.` becomes %XX, and so does a
    dot in front. What is empty, or too long for a file name, ends in `%-` and a hash, which that rule never writes.
    """
    raw = model_id.encode("utf-8", "surrogatepass")
    name = _UNSAFE.sub(lambda found: b"%%%02X" % found[0][0], raw).decode("ascii")
    return name if 0 < len(name) <= _LONGEST else f"{name[:100]}{_HASHED}{hashlib.sha256(raw).hexdigest()}"


def is_hashed(folder: str) -> bool:
    """Whether a model's folder has a name that does not tell its model id: then its NAME_FILE does."""
    return _HASHED_NAME.fullmatch(folder) is not None


def model_id_of(folder: str, name_file: bytes | None = None) -> str | None:
    """The model id that `folder_name` makes exactly this folder of; None where it makes it of none, or where that cannot be told.

    `name_file`: what the NAME_FILE of a hashed folder holds.
    """
    try:
        if not is_hashed(folder):
            model_id = unquote(folder, errors="surrogatepass")
        elif name_file is not None:
            model_id = name_file.decode("utf-8", "surrogatepass")
        else:
            return None
        return model_id if folder_name(model_id) == folder else None
    except UnicodeError:
        return None


def is_model(folder: str) -> bool:
    """Whether a folder's name is one that `folder_name` gives; every other folder is somebody else's."""
    return is_hashed(folder) or model_id_of(folder) is not None


def is_page_size(name: str) -> bool:
    """Whether a folder's name is one that `Layout` gives to a page size."""
    return _PAGE_SIZE.fullmatch(name) is not None


def is_page(shard: str, name: str) -> bool:
    """Whether a file of this name in a folder `shard` is a page; everything else in there is somebody else's."""
    return _FILE.fullmatch(name) is not None and name.startswith(shard)


class Place(NamedTuple):
    """The file of a page, the folder it is in, and the number of its shard."""

    path: str
    folder: str
    shard: int


@final
class Layout:
    """Paths of one scope, as strings: a Path object costs more than the system call it is made for."""

    def __init__(self, root: str, model_id: str, page_size: int) -> None:
        if page_size < 1:
            raise ValueError(f"page_size must be at least 1, not {page_size}")
        self.model_id = model_id
        self.model_folder = f"{root}/{folder_name(model_id)}"
        self._scope = f"{self.model_folder}/{page_size}"

    def place(self, key: str) -> Place:
        """Where a page is. Raises ValueError for what is not a key."""
        if _KEY.fullmatch(key) is None:
            raise ValueError(f"a key is 64 lowercase hex digits, not {key!r}")
        folder = f"{self._scope}/{key[:2]}"
        return Place(f"{folder}/{key}{SUFFIX}", folder, int(key[:2], 16))
