"""`kvcache storage inspect`: how many pages of which model, how large, how long unused."""

import argparse
import json
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from kvcache_core.contracts.storage import StoredPage
from kvcache_unified_hicache.storage.commands.opened import configured_storage
from kvcache_unified_hicache.storage.commands.units import duration_text, size_text, table

AGES: Final = {"1h": 3600.0, "1d": 86400.0, "7d": 604800.0, "30d": 2592000.0, "older": float("inf")}
"""Upper ends of the columns, in seconds since the last use."""


@dataclass(slots=True)
class Group:
    """Pages of one model and page size. `ages`: how many, by the names of AGES. `oldest`, `newest`: seconds since the use."""

    pages: int = 0
    nbytes: int = 0
    oldest: float = 0.0
    newest: float = float("inf")
    ages: dict[str, int] = field(default_factory=lambda: dict.fromkeys(AGES, 0))

    def add(self, nbytes: int, age: float) -> None:
        self.pages += 1
        self.nbytes += nbytes
        self.oldest = max(self.oldest, age)
        self.newest = min(self.newest, age)
        self.ages[next(name for name, end in AGES.items() if age < end)] += 1


def groups_of(pages: Iterable[StoredPage], now: float) -> dict[tuple[str, int], Group]:
    """Counts by model id and page size, sorted. Keeps no page: a store may have millions."""
    groups: dict[tuple[str, int], Group] = {}
    for page in pages:
        groups.setdefault((page.model_id, page.page_size), Group()).add(page.nbytes, max(0.0, now - page.used))
    return dict(sorted(groups.items()))


def run(args: argparse.Namespace) -> int:
    storage = configured_storage(args)
    groups = groups_of(storage.pages(), time.time())
    total = Group()
    for group in groups.values():
        total.pages += group.pages
        total.nbytes += group.nbytes
    if args.json:
        rows = [
            {
                "model_id": model_id,
                "page_size": page_size,
                "pages": group.pages,
                "bytes": group.nbytes,
                "oldest_use_seconds": group.oldest,
                "newest_use_seconds": group.newest,
                "pages_by_age": group.ages,
            }
            for (model_id, page_size), group in groups.items()
        ]
        print(json.dumps({"storage": storage.kind, "pages": total.pages, "bytes": total.nbytes, "groups": rows}, indent=2))
        return 0
    if not groups:
        print(f"storage '{storage.kind}': no pages")
        return 0
    head = ["model", "page size", "pages", "size", *(name if name == "older" else f"< {name}" for name in AGES), "last use"]
    body = [
        [
            model_id,
            str(page_size),
            f"{group.pages:,}",
            size_text(group.nbytes),
            *(f"{n:,}" for n in group.ages.values()),
            f"{duration_text(group.newest)} ago",
        ]
        for (model_id, page_size), group in groups.items()
    ]
    foot = ["all", "", f"{total.pages:,}", size_text(total.nbytes), *([""] * (len(AGES) + 1))]
    print(f"storage '{storage.kind}'; columns from '< 1h' on count pages by the time since their last use")
    print(table([head, *body, foot], right=set(range(1, len(head)))))
    return 0
