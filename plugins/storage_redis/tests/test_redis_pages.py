"""What lies in a server, and what reading and looking do to it: names, idle times, times to live, values of every kind, forks."""

import subprocess
import sys
import time

import numpy as np
import pytest

from kvcache_conformance.mutants import Fault, PlantedFaultTests, Replacement
from kvcache_conformance.server_process import LOOPBACK
from kvcache_conformance.storage_numbered import numbered_key
from kvcache_core.contracts.storage import StorageScope
from kvcache_storage_redis import server as server_module
from kvcache_storage_redis.names import Names, PageName
from kvcache_storage_redis.storage import RedisStorage
from kvcache_storage_redis.wire import packed

KEYS = [numbered_key(number) for number in range(6)]
OLD = 5000
"""Seconds since the last use that a test pretends."""


def make_old(server, name: bytes) -> None:
    """As if nobody had used the key for OLD seconds."""
    dump = server.ask("DUMP", name)
    server.ask("RESTORE", name, 0, dump, "REPLACE", "IDLETIME", OLD)
    assert server.ask("OBJECT", "IDLETIME", name) >= OLD


def ages(storage) -> dict[str, bool]:
    """By key, whether a scan calls it old."""
    return {page.key: time.time() - page.used > OLD - 100 for page in storage.scan()}


def test_a_page_is_one_string_under_a_name_that_says_what_it_is(stores, valkey):
    storage = stores.open(valkey, StorageScope("org/na:me{x}*", 64))
    storage.set(KEYS[:1], [b"page"])
    assert valkey.ask("GET", f"{stores.prefix}:org%2Fna%3Ame%7Bx%7D%2A:64:{KEYS[0]}") == b"page"
    (page,) = storage.scan()
    assert (page.key, page.model_id, page.page_size, page.nbytes) == (KEYS[0], "org/na:me{x}*", 64, 4)


@pytest.mark.parametrize("model_id", ["", "a", "a/b", "a:b", "%2F", "{tag}", "\0", "ü 漢", "../..", "x" * 500, "\ud800"])
def test_every_model_has_a_name_of_its_own_that_leads_back(model_id):
    names = Names("prefix", StorageScope(model_id, 16))
    name = names.name(KEYS[0])
    assert names.parse(name) == PageName(KEYS[0], model_id, 16)
    assert b"{" not in name
    assert name.count(b":") == 3


@pytest.mark.parametrize(
    "name",
    [
        b"prefix",
        b"prefix:model:16",
        b"prefix:model:16:key",
        b"prefix:mo/del:16:",
        b"prefix:m:0:",
        b"prefix:m:16:x:",
        b"prefixx:m:16:",
    ],
)
def test_keys_of_others_are_no_pages(name):
    names = Names("prefix", StorageScope("model", 16))
    assert names.parse(name) is None
    assert name.endswith(b"key") or names.parse(name + KEYS[0].encode()) is None


def test_a_key_that_is_none_is_an_error_before_anything_is_sent(stores, valkey):
    storage = stores.open(valkey)
    for wrong in ("", "x" * 64, KEYS[0].upper(), KEYS[0] + "\n", "../" + KEYS[0]):
        with pytest.raises(ValueError, match="64 lowercase hex digits"):
            storage.set([KEYS[0], wrong], [b"a", b"b"])
        with pytest.raises(ValueError, match="64 lowercase hex digits"):
            storage.get([wrong])
    assert storage.get(KEYS[:1]) == [None]


def test_scan_names_pages_and_nothing_else(stores, valkey):
    storage = stores.open(valkey)
    storage.set(KEYS, [b"page"] * 6)
    for other in ("", "x", f":model:16:{KEYS[0]}x", ":model:16"):
        valkey.ask("SET", f"{stores.prefix}{other}", "somebody else's")
    valkey.ask("LPUSH", f"{stores.prefix}:list:16:{KEYS[0]}", "somebody else's")
    assert sorted(page.key for page in storage.scan()) == sorted(KEYS)


def test_reading_counts_as_use_and_looking_does_not(stores, valkey):
    storage, looking = stores.open(valkey), stores.look(valkey)
    storage.set(KEYS[:3], [b"page"] * 3)
    for key in KEYS[:3]:
        make_old(valkey, stores.name(key))
    assert looking.get(KEYS[:3]) == [b"page"] * 3
    assert looking.exists(KEYS[:3]) == storage.exists(KEYS[:3]) == [True] * 3
    assert ages(looking) == dict.fromkeys(KEYS[:3], True)
    assert ages(looking) == dict.fromkeys(KEYS[:3], True)
    storage.get(KEYS[:1])
    assert ages(looking) == {KEYS[0]: False, KEYS[1]: True, KEYS[2]: True}


def test_a_server_that_counts_uses_has_pages_without_age(stores, own_valkey):
    own_valkey.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lfu")
    storage = stores.open(own_valkey)
    storage.set(KEYS[:2], [b"page", b""])
    assert ages(storage) == dict.fromkeys(KEYS[:2], False)


def test_who_only_looks_changes_nothing(stores, valkey):
    looking = stores.look(valkey)
    for call in (lambda: looking.set(KEYS[:1], [b"page"]), lambda: looking.delete(KEYS[:1])):
        with pytest.raises(PermissionError, match="read only"):
            call()
    assert valkey.ask("EXISTS", stores.name(KEYS[0])) == 0


def test_a_time_to_live_runs_from_the_last_use(stores, valkey):
    storage, looking = stores.open(valkey, ttl_seconds=1000), stores.look(valkey, ttl_seconds=1000)
    storage.set(KEYS[:1], [b"page"])
    assert 900 < valkey.ask("TTL", stores.name(KEYS[0])) <= 1000
    valkey.ask("EXPIRE", stores.name(KEYS[0]), 50)
    storage.exists(KEYS[:1])
    looking.get(KEYS[:1])
    assert valkey.ask("TTL", stores.name(KEYS[0])) <= 50
    assert storage.get(KEYS[:2]) == [b"page", None]
    assert valkey.ask("TTL", stores.name(KEYS[0])) > 900
    stores.open(valkey).set(KEYS[:1], [b"page"])
    assert valkey.ask("TTL", stores.name(KEYS[0])) == -1


def test_values_of_every_kind_and_size_come_back(stores, valkey):
    numbers = np.arange(24, dtype="<f4").reshape(2, 3, 4)
    every = bytes(range(256))
    values = [
        b"",
        every,
        bytearray(every * 20),
        memoryview(every * 3000),
        numbers.data,
        numbers[:0].data,
        every[:1],
    ]
    values.append(np.ones((1 << 20,), np.uint32).data)
    keys = [numbered_key(100 + number) for number in range(len(values))]
    storage = stores.open(valkey)
    storage.set(keys, values)
    assert storage.get(keys) == [memoryview(value).tobytes() for value in values]
    assert storage.get([keys[1], keys[1], KEYS[0], keys[6]]) == [every, every, None, every[:1]]


def test_a_batch_of_many_pipelines_keeps_its_order(stores, valkey):
    storage = stores.open(valkey, pipeline_bytes=50_000)
    keys = [numbered_key(number) for number in range(3000)]
    values = [key.encode() * (number % 7) for number, key in enumerate(keys)]
    storage.set(keys, values)
    assert storage.get(keys[::-1]) == values[::-1]
    storage.delete(keys[::2])
    assert storage.exists(keys) == [bool(number % 2) for number in range(3000)]


def test_what_is_sent_is_what_the_protocol_says():
    big = b"x" * 5000
    assert b"".join(packed([(b"GET", b"a"), (b"SET", b"k", memoryview(big)), (b"PING",)])) == (
        b"*2\r\n$3\r\nGET\r\n$1\r\na\r\n*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$5000\r\n" + big + b"\r\n*1\r\n$4\r\nPING\r\n"
    )
    (_, sent, _) = packed([(b"SET", memoryview(big))])
    assert isinstance(sent, memoryview)  # the caller's own, not a copy
    assert packed([]) == []


FORKS = """
import os, sys
from kvcache_core.contracts.storage import StorageScope
from kvcache_storage_redis.config import RedisOptions
from kvcache_storage_redis.opening import make

storage = make(RedisOptions(host="127.0.0.1", port=int(sys.argv[1]), key_prefix=sys.argv[2]), StorageScope("model", 16))
keys = sys.argv[3:]
storage.set(keys[:1], [b"before"])
child = os.fork()
if not child:
    assert storage.get(keys[:2]) == [b"before", None]
    storage.set(keys[1:2], [b"child"])
    os._exit(0)
storage.set(keys[2:], [b"parent"])
assert os.waitpid(child, 0)[1] == 0
assert storage.get(keys) == [b"before", b"child", b"parent"]
print("both")
"""


def test_a_store_is_used_on_both_sides_of_a_fork(stores, valkey):
    words = [sys.executable, "-c", FORKS, str(valkey.port), stores.prefix, *KEYS[:3]]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.returncode) == ("both\n", 0), done.stderr


def test_nothing_of_a_store_shows_its_password(stores, tmp_path):
    from kvcache_conformance.redis_servers import RedisServer, valkey_command
    from kvcache_conformance.server_process import started

    with started(lambda: RedisServer(valkey_command(), tmp_path / "locked", password="hunter2")) as server:
        storage = stores.open(server, url=f"redis://:hunter2@{LOOPBACK}:{server.port}", host="localhost", port=6379)
        storage.set(KEYS[:1], [b"page"])
        shown = repr(storage) + repr(vars(storage)) + repr(storage.facts)
        assert "hunter2" not in shown


class TestPageFaults(PlantedFaultTests):
    faults = (
        Fault(
            "looking counts as use",
            test_reading_counts_as_use_and_looking_does_not,
            Replacement(server_module, "_connect_quietly", '"CLIENT", "NO-TOUCH", "ON"', '"PING"'),
        ),
        Fault(
            "reading does not renew the time to live",
            test_a_time_to_live_runs_from_the_last_use,
            Replacement(RedisStorage, "get", 'b"GETEX", (b"EX", self._ttl)', 'b"GET", ()'),
        ),
        Fault(
            "keys of others are pages",
            test_scan_names_pages_and_nothing_else,
            Replacement(Names, "parse", "_KEY.fullmatch(key) is None", "False"),
        ),
    )
