"""What lies in a root: its folders and the pages in them, found by looking. No page is remembered, nothing is changed.

Whatever is not exactly where and how `Layout` writes it belongs to somebody else and is never named.
"""

import logging
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, final

from kvcache_core.contracts.storage import StoredPage
from kvcache_storage_file import layout

log = logging.getLogger(__name__)


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


@final
class Pages:
    """The pages of one root. Thread safe.

    A folder that may not be read (another user's, a backup tool's) keeps nobody from all the others: it is left out, and a
    warning names it, once for each. Only a root that may not be read is an error.
    """

    def __init__(self, root: str) -> None:
        self.root = root
        self._left_out: set[str] = set()

    def scopes(self) -> Iterator[Scope]:
        """Every scope of the root. Raises OSError."""
        for model in _folders(self.root):
            if not layout.is_model(model.name):
                continue
            try:
                sizes = _folders(model.path)
            except PermissionError as error:
                self._leave_out(model.path, error)
                continue
            for size in sizes:
                if layout.is_page_size(size.name):
                    yield Scope(model.name, int(size.name), size.path)

    def in_shard_of(self, scope: Scope, shard: str) -> Iterator[Page]:
        """The pages of one shard of a scope. Those that vanish meanwhile are left out. Raises OSError."""
        number = int(shard, 16)
        folder = f"{scope.path}/{shard}"
        culprit = scope.path
        try:
            if not stat.S_ISDIR(os.stat(folder, follow_symlinks=False).st_mode):  # noqa: PTH116 - see Layout
                return
            culprit = folder
            with os.scandir(folder) as entries:
                for entry in entries:
                    if layout.is_page(shard, entry.name) and entry.is_file(follow_symlinks=False):
                        with suppress(FileNotFoundError):
                            status = entry.stat(follow_symlinks=False)
                            yield Page(status.st_mtime_ns, status.st_size, entry.path, number)
        except FileNotFoundError:
            return
        except PermissionError as error:
            self._leave_out(culprit, error)

    def of_shard(self, shard: int) -> list[Page]:
        """The pages of one shard of every scope. Raises OSError."""
        return [page for scope in self.scopes() for page in self.in_shard_of(scope, layout.SHARDS[shard])]

    def stored(self) -> Iterator[StoredPage]:
        """Every page of the root as the contract names it. Raises OSError.

        A page is named only by what leads back to it. Where a NAME_FILE is gone or spoilt, its folder's pages are left out until
        the next write for that model mends it; they count under the limit all the same.
        """
        for scope in self.scopes():
            model_id = self._model_id(scope)
            if model_id is None:
                continue
            for shard in layout.SHARDS:
                for page in self.in_shard_of(scope, shard):
                    key = Path(page.path).stem
                    yield StoredPage(key, model_id, scope.page_size, page.nbytes, page.used / 1e9)

    def _model_id(self, scope: Scope) -> str | None:
        if not layout.is_hashed(scope.model_folder):
            return layout.model_id_of(scope.model_folder)
        name_file = Path(self.root, scope.model_folder, layout.NAME_FILE)
        try:
            return layout.model_id_of(scope.model_folder, name_file.read_bytes() if name_file.is_file() else None)
        except PermissionError as error:
            self._leave_out(str(name_file), error)
            return None

    def _leave_out(self, path: str, error: OSError) -> None:
        if path not in self._left_out:
            self._left_out.add(path)
            log.warning("%s cannot be read, its pages are left out (said once): %s", path, error.strerror)


def _folders(path: str) -> list[os.DirEntry[str]]:
    """Raises OSError."""
    try:
        with os.scandir(path) as entries:
            return [entry for entry in entries if entry.is_dir(follow_symlinks=False)]
    except (FileNotFoundError, NotADirectoryError):
        return []
