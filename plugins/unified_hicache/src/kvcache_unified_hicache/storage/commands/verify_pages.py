"""`kvcache storage verify`: is every page what its name and its checksum say? No model is needed: a page describes itself."""

import argparse
import json
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final, NamedTuple

from kvcache_core.contracts.storage import HiCacheStorage, StorageScope, StoredPage
from kvcache_core.errors import KVCacheError
from kvcache_unified_hicache.storage.answers import BadAnswerError, checked_flags, checked_values
from kvcache_unified_hicache.storage.commands.opened import ConfiguredStorage, configured_storage
from kvcache_unified_hicache.storage.commands.progress import Progress
from kvcache_unified_hicache.storage.commands.units import count_text, size_text
from kvcache_unified_hicache.storage.page_frame import BadPageError, read_page

BATCH_BYTES: Final = 8 << 20


class BadPage(NamedTuple):
    """A page and what is wrong with it. `removed`: it was deleted, and is really gone."""

    page: StoredPage
    reason: str
    removed: bool = False


class Verdict(NamedTuple):
    """`good`, `gone`: pages; those that are gone were removed by others while this command ran. `nbytes`: that were read."""

    good: int
    gone: int
    nbytes: int
    bad: list[BadPage]


def verify(storage: ConfiguredStorage, progress: Progress, *, remove: bool) -> Verdict:
    """Read every page. Raises StorageError when the backend cannot list or be opened; pages that cannot be read are bad."""
    good, gone, nbytes = 0, 0, 0
    bad: list[BadPage] = []
    # The least recently used first: reading is use, and this keeps the order in which pages would be evicted.
    pages = sorted(storage.pages(), key=lambda page: (page.model_id, page.page_size, page.used))
    for (model_id, page_size), group in groupby(pages, key=lambda page: (page.model_id, page.page_size)):
        with storage.opened(StorageScope(model_id, page_size, read_only=not remove)) as backend:
            for batch in _batches(group):
                answers = _read(backend, batch)
                wrong = [BadPage(page, answer) for page, answer in zip(batch, answers, strict=True) if answer]
                gone += sum(answer is None for answer in answers)
                good += sum(answer == "" for answer in answers)
                nbytes += sum(page.nbytes for page in batch)
                bad += _removed(storage, backend, wrong) if remove and wrong else wrong
                progress.show(f"{good + gone + len(bad):,} of {count_text(len(pages), 'page')}, {len(bad):,} bad")
    return Verdict(good, gone, nbytes, bad)


def run(args: argparse.Namespace) -> int:
    storage = configured_storage(args)
    with Progress(quiet=args.quiet) as progress:
        verdict = verify(storage, progress, remove=args.remove)
    if args.json:
        rows = [bad.page._asdict() | {"reason": bad.reason, "removed": bad.removed} for bad in verdict.bad]
        counts = {"good": verdict.good, "gone": verdict.gone, "bytes_read": verdict.nbytes}
        print(json.dumps({"storage": storage.kind, **counts, "bad": rows}, indent=2))
    else:
        for bad in verdict.bad:
            page = bad.page
            text = f"{page.key}: {bad.reason} ({page.model_id}, page size {page.page_size}, {size_text(page.nbytes)})"
            print(text + (", removed" if bad.removed else ""))
        print(_summary(verdict, args.remove))
    return 1 if verdict.bad else 0


def _summary(verdict: Verdict, remove: bool) -> str:
    text = f"{count_text(verdict.good, 'good page')}, {len(verdict.bad):,} bad, {size_text(verdict.nbytes)} read"
    if verdict.gone:
        text += f"; {count_text(verdict.gone, 'page')} gone meanwhile"
    left = sum(not bad.removed for bad in verdict.bad)
    if left:
        text += f"; {count_text(left, 'bad page')} could not be removed" if remove else "; --remove deletes the bad ones"
    return text


def _batches(pages: Iterator[StoredPage]) -> Iterator[list[StoredPage]]:
    batch: list[StoredPage] = []
    nbytes = 0
    for page in pages:
        if batch and nbytes + page.nbytes > BATCH_BYTES:
            yield batch
            batch, nbytes = [], 0
        batch.append(page)
        nbytes += page.nbytes
    if batch:
        yield batch


def _read(backend: HiCacheStorage, pages: Sequence[StoredPage]) -> list[str | None]:
    """For each page: "" when it is good, None when it is gone, else what is wrong with it."""
    try:
        values = checked_values(backend.get([page.key for page in pages]), len(pages))
    except Exception as error:
        # One page that cannot be read must not hide the others.
        if len(pages) > 1:
            return [answer for page in pages for answer in _read(backend, [page])]
        name = str(error) if isinstance(error, BadAnswerError) else f"{type(error).__name__}: {error}"
        return [f"cannot be read: {name}"]
    answers: list[str | None] = []
    for page, value in zip(pages, values, strict=True):
        try:
            if value is not None:
                read_page(page.key, value)
            answers.append(None if value is None else "")
        except BadPageError as error:
            answers.append(str(error))
    if len(pages) > 1:
        # A backend may leave out of a batch what it cannot read, as if it were gone; asked for it alone, it has to say why.
        return [answer if answer is not None else _read(backend, [page])[0] for page, answer in zip(pages, answers, strict=True)]
    return answers


def _removed(storage: ConfiguredStorage, backend: HiCacheStorage, bad: Sequence[BadPage]) -> list[BadPage]:
    """The same pages, deleted where that worked: by the backend's own answer afterwards."""
    keys = [one.page.key for one in bad]
    try:
        storage.guarded("cannot delete pages", lambda: backend.delete(keys))
        there = storage.guarded("cannot look for pages", lambda: checked_flags(backend.exists(keys), len(keys)))
    except KVCacheError:
        return list(bad)
    return [one._replace(removed=not still) for one, still in zip(bad, there, strict=True)]
