"""Stores batches of pages, as durable as was asked for. It knows folders and drafts, not how room is made."""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, final

from kvcache_core.contracts.storage import Value
from kvcache_storage_file import page_file
from kvcache_storage_file.config import Durability
from kvcache_storage_file.draft import Draft
from kvcache_storage_file.layout import NAME_FILE, Layout, is_hashed
from kvcache_storage_file.root import Root
from kvcache_storage_file.session import Session
from kvcache_storage_file.workers import Workers

_GROUP = 64
"""Pages that are synced together: their files are open meanwhile."""


class _Item(NamedTuple):
    folder: str
    path: str
    shard: int
    value: Value
    used: int


@final
class Writer:
    """Thread safe.

    Durability: `none` leaves it to the system when bytes reach the disk. With the others a page gets its name only after its
    bytes are on the disk; and when `store` returns, `page` has synced every page and its folder one by one, `batch` the pages of
    a group together and then each of their folders once.
    """

    def __init__(self, root: Root, layout: Layout, workers: Workers, durability: Durability) -> None:
        self._root = root
        self._layout = layout
        self._workers = workers
        self._durability = durability
        self._folders: set[str] = set()

    def store(self, batch: Mapping[str, Value]) -> list[Exception]:
        """Gives what kept single pages from being stored; all the others are. Raises ValueError for a key that is none, before
        anything is stored."""
        # One order for the batch, whichever thread comes first.
        first = time.time_ns()
        items = [
            _Item(self._layout.shard(key), self._layout.file(key), int(key[:2], 16), value, first + number)
            for number, (key, value) in enumerate(batch.items())
        ]
        if self._durability == "batch":
            groups = [items[start : start + _GROUP] for start in range(0, len(items), _GROUP)]
            return [error for group in groups for error in self._store_group(group)]
        return self._workers.each(len(items), lambda number: self._store(items[number]))

    def _store(self, item: _Item) -> None:
        """Raises OSError, after another try where something could be mended."""
        for last in (False, True):
            with self._root.use() as session:
                try:
                    self._write(session, item)
                except OSError as error:
                    if last or not self._root.mend(session, error, memoryview(item.value).nbytes):
                        raise
                    self._folders.clear()
                else:
                    return

    def _write(self, session: Session, item: _Item) -> None:
        draft = Draft(session, item.value, item.used)
        # Only now: where the root has gone, nothing may be made in its place before somebody has looked what is there.
        draft.attempt(lambda: self._make(item.folder))
        if self._durability != "none":
            draft.sync()
        draft.commit(item.path, item.shard)
        if self._durability != "none":
            page_file.sync_folder(item.folder)

    def _store_group(self, group: Sequence[_Item]) -> list[Exception]:
        left: set[int] = set(range(len(group)))
        drafts: dict[int, Draft] = {}
        with self._root.use() as session:

            def write(number: int) -> None:
                draft = Draft(session, group[number].value, group[number].used)
                draft.attempt(lambda: self._make(group[number].folder))
                drafts[number] = draft

            def sync(number: int) -> None:
                written[number][1].sync()
                synced.append(written[number])

            self._workers.each(len(group), write)
            written = list(drafts.items())
            synced: list[tuple[int, Draft]] = []
            self._workers.each(len(written), sync)
            for number, draft in synced:
                with suppress(OSError):  # it is left over, and what it raises then counts
                    draft.commit(group[number].path, group[number].shard)
                    left.discard(number)
            folders = sorted({group[number].folder for number in drafts})
            errors = self._workers.each(len(folders), lambda number: page_file.sync_folder(folders[number]))
        # What failed is tried once more, page by page.
        again = sorted(left)
        return errors + self._workers.each(len(again), lambda number: self._store(group[again[number]]))

    def _make(self, folder: str) -> None:
        """A page's folder, once; what may have been removed since is made again after the write has failed."""
        if folder in self._folders:
            return
        Path(folder).mkdir(parents=True, exist_ok=True)
        if is_hashed(self._layout.model_folder):
            self._write_name()
        if self._durability != "none":
            for parent in list(Path(folder).parents)[:3]:
                page_file.sync_folder(str(parent))
        self._folders.add(folder)

    def _write_name(self) -> None:
        name = Path(self._layout.model_folder, NAME_FILE)
        if not name.exists():
            # Many may write it at once, and all write the same.
            name.write_text(self._layout.model_id, "utf-8", "surrogatepass")
