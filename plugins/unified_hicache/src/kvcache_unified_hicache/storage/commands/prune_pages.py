"""`kvcache storage prune`: remove pages by age, total size or model."""

import argparse
import json
import time
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any, Final, NamedTuple

from kvcache_core.contracts.storage import HiCacheStorage, StorageScope, StoredPage
from kvcache_core.errors import KVCacheError
from kvcache_unified_hicache.storage.answers import checked_flags
from kvcache_unified_hicache.storage.commands.opened import ConfiguredStorage, configured_storage
from kvcache_unified_hicache.storage.commands.units import count_text, duration_text, size_text

KEYS_A_CALL: Final = 1024


class Conditions(NamedTuple):
    """Which pages go. `older_than`: seconds since the last use. `max_bytes`: of the pages that stay. None: no such condition."""

    older_than: float | None
    max_bytes: int | None
    model: str | None


class Removal(NamedTuple):
    """Of one model and page size: pages that were to go, their bytes, and those that are still there."""

    model_id: str
    page_size: int
    pages: int
    nbytes: int
    failed: int


def doomed(pages: Iterable[StoredPage], conditions: Conditions, now: float) -> list[StoredPage]:
    """The pages that go, the least recently used first."""
    ordered = sorted((page for page in pages if conditions.model in (None, page.model_id)), key=lambda page: page.used)
    if conditions.older_than is None and conditions.max_bytes is None:
        return ordered
    old = 0 if conditions.older_than is None else sum(now - page.used > conditions.older_than for page in ordered)
    if conditions.max_bytes is None:
        return ordered[:old]
    left = sum(page.nbytes for page in ordered[old:])
    while left > conditions.max_bytes:
        left -= ordered[old].nbytes
        old += 1
    return ordered[:old]


def remove(storage: ConfiguredStorage, pages: Sequence[StoredPage], *, dry_run: bool) -> list[Removal]:
    """Delete exactly `pages`. What the backend does not delete is counted, and stops neither the others nor the other models."""
    removals: list[Removal] = []
    by_scope = sorted(pages, key=lambda page: (page.model_id, page.page_size))
    for (model_id, page_size), group in groupby(by_scope, key=lambda page: (page.model_id, page.page_size)):
        of_scope = list(group)
        failed: set[str] = set()
        if not dry_run:
            with storage.opened(StorageScope(model_id, page_size)) as backend:
                for start in range(0, len(of_scope), KEYS_A_CALL):
                    failed |= _delete(backend, [page.key for page in of_scope[start : start + KEYS_A_CALL]])
        gone = [page for page in of_scope if page.key not in failed]
        removals.append(Removal(model_id, page_size, len(gone), sum(page.nbytes for page in gone), len(failed)))
    return removals


def run(args: argparse.Namespace) -> int:
    conditions = Conditions(args.older_than, args.max_bytes, args.model)
    if conditions == (None, None, None):
        raise KVCacheError("say which pages: --older-than 7d, --max-bytes 10GiB or --model ID (all pages of a model)")
    storage = configured_storage(args)
    pages = list(storage.pages())
    removals = remove(storage, doomed(pages, conditions, time.time()), dry_run=args.dry_run)
    if args.json:
        print(json.dumps(_report(storage, pages, removals, dry_run=args.dry_run), indent=2))
    else:
        _print(pages, conditions, removals, dry_run=args.dry_run)
    return 1 if any(removal.failed for removal in removals) else 0


def _delete(backend: HiCacheStorage, keys: Sequence[str]) -> set[str]:
    """Delete `keys`; gives those that are still there, by the backend's own answer."""
    try:
        backend.delete(keys)
        return {key for key, there in zip(keys, checked_flags(backend.exists(keys), len(keys)), strict=True) if there}
    except Exception:
        # One page that cannot be deleted must not save the others.
        if len(keys) == 1:
            return set(keys)
        return {key for one in keys for key in _delete(backend, [one])}


def _report(
    storage: ConfiguredStorage, pages: Sequence[StoredPage], removals: Sequence[Removal], *, dry_run: bool
) -> dict[str, Any]:
    return {
        "storage": storage.kind,
        "dry_run": dry_run,
        "pages_before": len(pages),
        "bytes_before": sum(page.nbytes for page in pages),
        "removed": [removal._asdict() for removal in removals],
    }


def _print(pages: Sequence[StoredPage], conditions: Conditions, removals: Sequence[Removal], *, dry_run: bool) -> None:
    verb = "would remove" if dry_run else "removed"
    for removal in removals:
        what = f"{count_text(removal.pages, 'page')} ({size_text(removal.nbytes)})"
        print(f"{verb} {what} of {removal.model_id}, page size {removal.page_size}")
        if removal.failed:
            print(f"  {count_text(removal.failed, 'page')} could not be removed")
    if not removals:
        print(f"nothing to remove{_of(pages, conditions)}")
    n = len(pages) - sum(removal.pages for removal in removals)
    nbytes = sum(page.nbytes for page in pages) - sum(removal.nbytes for removal in removals)
    print(f"{'would be left' if dry_run else 'left'}: {count_text(n, 'page')}, {size_text(nbytes)}")


def _of(pages: Sequence[StoredPage], conditions: Conditions) -> str:
    """A model id that nothing has is usually a slip."""
    models = sorted({page.model_id for page in pages})
    if conditions.model is not None and conditions.model not in models:
        return f": no page of model {conditions.model}; there are: {', '.join(models) or 'none'}"
    if conditions.older_than is not None and conditions.max_bytes is None:
        return f": every page was used within {duration_text(conditions.older_than)}"
    return ""
