"""What lies in a root: its folders and the pages in them, found by looking. Nothing is remembered, nothing is changed.

Whatever is not exactly where and how `Layout` writes it belongs to somebody else and is never named.
"""

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from kvcache_core.contracts.storage import StoredPage
from kvcache_storage_file import layout


class Page(NamedTuple):
    """A page's file. They sort by `used` (nanoseconds since the epoch), the least recent first."""

    used: int
    nbytes: int
    path: str
    shard: int


class Scope(NamedTuple):
    """A folder of pages of one model (its folder's name) and one page size."""

    model_folder: str
    page_size: int
    path: str


def scopes(root: str) -> Iterator[Scope]:
    """Every scope of the root."""
    for model in _folders(root):
        if not layout.is_model(model.name):
            continue
        for size in _folders(model.path):
            if layout.is_page_size(size.name):
                yield Scope(model.name, int(size.name), size.path)


def pages_in(scope: Scope, shard: str) -> Iterator[Page]:
    """The pages of one shard of a scope. Those that vanish meanwhile are left out."""
    number = int(shard, 16)
    folder = f"{scope.path}/{shard}"
    try:
        if not stat.S_ISDIR(os.stat(folder, follow_symlinks=False).st_mode):  # noqa: PTH116 - see Layout
            return
        entries = os.scandir(folder)
    except FileNotFoundError:
        return
    with entries:
        for entry in entries:
            if layout.is_page(shard, entry.name) and entry.is_file(follow_symlinks=False):
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                yield Page(status.st_mtime_ns, status.st_size, entry.path, number)


def pages_of_shard(root: str, shard: int) -> list[Page]:
    """The pages of one shard of every scope."""
    return [page for scope in scopes(root) for page in pages_in(scope, layout.SHARDS[shard])]


def stored_pages(root: str) -> Iterator[StoredPage]:
    """Every page of the root as the contract names it. Raises OSError.

    A page is named only by what leads back to it. Where a NAME_FILE is gone or spoilt, its folder's pages are left out until the
    next write for that model mends it; they count under the limit all the same.
    """
    for scope in scopes(root):
        name_file = _name_file(f"{root}/{scope.model_folder}") if layout.is_hashed(scope.model_folder) else None
        model_id = layout.model_id_of(scope.model_folder, name_file)
        if model_id is None:
            continue
        for shard in layout.SHARDS:
            for page in pages_in(scope, shard):
                key = Path(page.path).stem
                yield StoredPage(key, model_id, scope.page_size, page.nbytes, page.used / 1e9)


def _folders(path: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            return [entry for entry in entries if entry.is_dir(follow_symlinks=False)]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _name_file(folder: str) -> bytes | None:
    path = Path(folder, layout.NAME_FILE)
    return path.read_bytes() if path.is_file() else None
