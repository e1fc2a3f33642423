"""Counters leave as plain data."""

import json

from kvcache_core.contracts.counters import CacheCounters


def test_as_dict_is_json_and_a_copy():
    counters = CacheCounters()
    counters.dropped["no room"] += 3
    counters.bytes_moved["d2h"] += 7
    data = counters.as_dict()
    assert json.loads(json.dumps(data))["dropped"] == {"no room": 3}
    assert data["bytes_moved"] == {"d2h": 7}
    counters.dropped["no room"] += 1
    counters.lookups += 1
    assert data["dropped"] == {"no room": 3}
    assert data["lookups"] == 0
