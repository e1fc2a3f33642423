"""`kvcache storage inspect`: pages counted by model, page size and age."""

import json

from kvcache_unified_hicache.storage.commands import units
from kvcache_unified_hicache.storage.commands.inspect_pages import groups_of

HOUR, DAY = 3600, 86400


def test_inspect_counts_by_model_page_size_and_age(store, kvcache):
    store.hold("org/small", 60, 2 * HOUR, 2 * DAY, 40 * DAY)
    store.hold("org/small", 60, page_size=64)
    store.hold("org_small", 8 * DAY)
    status, out, _ = kvcache("inspect", "--json")
    report = json.loads(out)
    assert status == 0
    assert (report["pages"], report["bytes"]) == (6, 6 * store.page_bytes)
    groups = {(group["model_id"], group["page_size"]): group for group in report["groups"]}
    assert list(groups) == [("org/small", 16), ("org/small", 64), ("org_small", 16)]
    small = groups["org/small", 16]
    assert small["pages_by_age"] == {"1h": 1, "1d": 1, "7d": 1, "30d": 0, "older": 1}
    assert (small["pages"], small["bytes"]) == (4, 4 * store.page_bytes)
    assert 60 <= small["newest_use_seconds"] < HOUR
    assert 40 * DAY <= small["oldest_use_seconds"] < 41 * DAY


def test_inspect_prints_a_table(store, kvcache):
    store.hold("org/small", 60, 8 * DAY)
    status, out, _ = kvcache("inspect")
    assert status == 0
    head, row, total = out.splitlines()[1:]
    assert head.split() == [
        "model",
        "page",
        "size",
        "pages",
        "size",
        "<",
        "1h",
        "<",
        "1d",
        "<",
        "7d",
        "<",
        "30d",
        "older",
        "last",
        "use",
    ]
    size = units.size_text(2 * store.page_bytes).split()
    assert row.split() == ["org/small", "16", "2", *size, "1", "0", "0", "1", "0", "1", "m", "ago"]
    assert total.split() == ["all", "2", *size]


def test_a_page_from_the_future_is_new():
    """Clocks of machines that share a store differ."""
    from kvcache_core.contracts.storage import StoredPage

    (group,) = groups_of([StoredPage("a" * 64, "m", 1, 10, 5000.0)], now=1000.0).values()
    assert (group.ages["1h"], group.oldest) == (1, 0.0)
