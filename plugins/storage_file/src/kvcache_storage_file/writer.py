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
from kvcache_storage_file.layout import NAME_FILE, Layout, Place, is_hashed
from kvcache_storage_file.root import Root
from kvcache_storage_file.session import Session
from kvcache_storage_file.workers import Workers

_GROUP = 64
"""Pages that are synced together: their files are open meanwhile."""


class _Item(NamedTuple):
    place: Place
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
        # One order for the batch, whichever thread comes first. A page is worth nothing without those before it, so those count
        # as used later, and the end of a prefix goes before its beginning.
        now = time.time_ns()
        items = [_Item(self._layout.place(key), batch[key], now - number) for number, key in enumerate(batch)]
        with self._root.use() as session:
            if self._durability == "batch":
                groups = [items[start : start + _GROUP] for start in range(0, len(items), _GROUP)]
                return [error for group in groups for error in self._store_group(session, group)]
            return self._workers.each(len(items), lambda number: self._store(session, items[number]))

    def _store(self, session: Session, item: _Item) -> None:
        """Raises OSError, after another try where something could be mended."""
        try:
            self._write(session, item)
        except OSError as error:
            if not self._root.mend(session, error, memoryview(item.value).nbytes, item.used):
                raise
            self._folders.clear()
            with self._root.use() as mended:
                self._write(mended, item)

    def _write(self, session: Session, item: _Item) -> None:
        draft = self._draft(session, item)
        if self._durability != "none":
            draft.sync()
        draft.commit(item.place)
        if self._durability != "none":
            page_file.sync_folder(item.place.folder)

    def _draft(self, session: Session, item: _Item) -> Draft:
        draft = Draft(session, item.value, item.used)
        if item.place.folder not in self._folders:
            # Only now: where the root has gone, nothing may be made in its place before somebody has looked what is there.
            draft.attempt(lambda: self._make(session, item.place.folder))
        return draft

    def _store_group(self, session: Session, group: Sequence[_Item]) -> list[Exception]:
        drafts: dict[int, Draft] = {}
        synced: dict[int, Draft] = {}
        left = set(range(len(group)))

        def write(number: int) -> None:
            drafts[number] = self._draft(session, group[number])

        def sync(number: int) -> None:
            if number in drafts:
                drafts[number].sync()
                synced[number] = drafts[number]

        self._workers.each(len(group), write)
        self._workers.each(len(group), sync)
        for number, draft in sorted(synced.items()):
            with suppress(OSError):  # it is left over then, and what the second try raises counts
                draft.commit(group[number].place)
                left.discard(number)
        folders = sorted({group[number].place.folder for number in synced.keys() - left})
        errors = self._workers.each(len(folders), lambda number: page_file.sync_folder(folders[number]))
        again = sorted(left)
        return errors + self._workers.each(len(again), lambda number: self._store(session, group[again[number]]))

    def _make(self, session: Session, folder: str) -> None:
        """A page's folder, once; what has been removed since is made again when a write has failed."""
        Path(folder).mkdir(parents=True, exist_ok=True)
        if is_hashed(Path(self._layout.model_folder).name):
            self._write_name(session.member.temporary())
        if self._durability != "none":
            for parent in list(Path(folder).parents)[:3]:
                page_file.sync_folder(str(parent))
        self._folders.add(folder)

    def _write_name(self, temporary: str) -> None:
        name = Path(self._layout.model_folder, NAME_FILE)
        text = self._layout.model_id.encode("utf-8", "surrogatepass")
        if not name.is_file() or name.read_bytes() != text:
            # Many may write it at once, and all write the same; nobody sees a part of it.
            Path(temporary).write_bytes(text)
            Path(temporary).replace(name)
