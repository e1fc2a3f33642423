"""S1, S2 on one server: it hangs, is killed, starts anew, is full. A store fails within its time-outs and goes on by itself."""

import threading

import pytest

from kvcache_conformance.mutants import Fault, PlantedFaultTests, Replacement
from kvcache_conformance.server_process import LOOPBACK
from kvcache_conformance.storage_numbered import numbered_key
from kvcache_core.contracts.storage import NotAllStoredError
from kvcache_storage_redis.errors import Address, PagesError
from kvcache_storage_redis.server import Login, Server
from kvcache_storage_redis.storage import RedisStorage

KEYS = [numbered_key(number) for number in range(40)]
PAGE = 100_000


def page(number: int) -> bytes:
    return bytes([number % 251 + 1]) * PAGE


def fill(storage, keys) -> int:
    """Store pages until one is refused; gives how many were stored."""
    for number, key in enumerate(keys):
        try:
            storage.set([key], [page(number)])
        except PagesError:
            return number
    return len(keys)


@pytest.mark.parametrize("call", ["exists", "get", "set", "delete"])
def test_a_server_that_hangs_costs_the_time_out_and_answers_again(stores, own_valkey, call):
    storage = stores.open(own_valkey, socket_timeout=1.0)
    storage.set(KEYS[:2], [page(0), page(1)])
    own_valkey.pause()
    with pytest.raises(PagesError, match=f"2 of 2 pages were not .*127.0.0.1:{own_valkey.port}: TimeoutError"):
        getattr(storage, call)(KEYS[:2], *[[page(0), page(1)]] * (call == "set"))
    own_valkey.resume()
    storage.set(KEYS[2:3], [page(2)])
    assert storage.get(KEYS[2:3]) == [page(2)]


def test_a_late_answer_is_never_anothers(stores, own_valkey):
    """What was asked before the time-out is answered after it, on a connection that nobody reads any more."""
    storage = stores.open(own_valkey, socket_timeout=1.0)
    storage.set(KEYS[:2], [page(0), page(1)])
    own_valkey.pause()
    with pytest.raises(PagesError):
        storage.get(KEYS[:1])
    own_valkey.resume()
    assert storage.get(KEYS[1:2]) == [page(1)]
    assert storage.get(KEYS[:2]) == [page(0), page(1)]


def test_a_killed_server_is_an_error_and_not_a_miss_and_needs_no_new_store_when_it_is_back(stores, own_valkey):
    storage = stores.open(own_valkey)
    storage.set(KEYS[:2], [page(0), page(1)])
    own_valkey.kill()
    for _ in range(2):
        with pytest.raises(PagesError, match=r"2 of 2 pages were not answered for: .*ConnectionError"):
            storage.get(KEYS[:2])
    with pytest.raises(PagesError, match=r"2 of 2 pages were not stored: .*ConnectionError"):
        storage.set(KEYS[:2], [page(0), page(1)])
    own_valkey.start()
    assert storage.get(KEYS[:2]) == [None, None]
    storage.set(KEYS[:2], [page(0), page(1)])
    assert storage.get(KEYS[:2]) == [page(0), page(1)]


def test_a_server_that_was_restarted_between_two_calls_is_not_noticed(stores, own_valkey):
    storage = stores.open(own_valkey)
    storage.set(KEYS[:1], [page(0)])
    own_valkey.kill()
    own_valkey.start()
    assert storage.exists(KEYS[:1]) == [False]


def test_a_full_server_refuses_what_does_not_fit_and_keeps_the_rest(stores, own_valkey):
    own_valkey.ask("CONFIG", "SET", "maxmemory", own_valkey_bytes(own_valkey) + 12 * PAGE)
    storage = stores.open(own_valkey, max_value_bytes=PAGE)
    stored = fill(storage, KEYS)
    assert 3 < stored < 15
    with pytest.raises(PagesError, match="2 of 2 pages were not stored: OutOfMemoryError"):
        storage.set(KEYS[-2:], [page(0), page(1)])
    assert storage.get(KEYS[:stored]) == [page(number) for number in range(stored)]
    storage.delete(KEYS[:3])
    storage.set(KEYS[-1:], [page(7)])
    assert storage.get([KEYS[-1], *KEYS[:4]]) == [page(7), None, None, None, page(3)]


def test_a_server_that_evicts_takes_three_times_what_fits(stores, own_valkey):
    own_valkey.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    own_valkey.ask("CONFIG", "SET", "maxmemory", own_valkey_bytes(own_valkey) + 12 * PAGE)
    storage = stores.open(own_valkey, max_value_bytes=PAGE)
    assert fill(storage, KEYS) == len(KEYS)
    found = storage.get(KEYS)
    assert found[-1] == page(len(KEYS) - 1)
    assert all(value in (None, page(number)) for number, value in enumerate(found))
    assert 1 < len([value for value in found if value is not None]) < 20


def own_valkey_bytes(server) -> int:
    """Memory that a server without pages uses."""
    info = dict(line.split(":", 1) for line in server.ask("INFO", "memory").decode().splitlines() if ":" in line)
    return int(info["used_memory"])


def test_a_page_above_the_limit_is_not_even_sent(stores, own_valkey):
    """Sent, it would push out all other pages, and not be stored either."""
    own_valkey.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    own_valkey.ask("CONFIG", "SET", "maxmemory", own_valkey_bytes(own_valkey) + 12 * PAGE)
    storage = stores.open(own_valkey)
    storage.set(KEYS[:3], [page(0), page(1), page(2)])
    huge = b"x" * (40 * PAGE)
    with pytest.raises(
        NotAllStoredError,
        match=r"1 of 2 pages were not stored: ValueError: 4000000 bytes are above the limit of \d+ \(max_value_bytes",
    ):
        storage.set(KEYS[4:6], [huge, page(5)])
    assert storage.get(KEYS[:6]) == [page(0), page(1), page(2), None, None, page(5)]


@pytest.mark.parametrize(
    ("maxmemory", "options", "largest"), [(0, {}, 512 << 20), (4 << 20, {}, 1 << 20), (4 << 20, {"max_value_bytes": 5}, 5)]
)
def test_the_limit_of_a_page_follows_the_servers_memory(stores, own_valkey, maxmemory, options, largest):
    own_valkey.ask("CONFIG", "SET", "maxmemory", maxmemory)
    storage = stores.open(own_valkey, **options)
    if largest < 2 << 20:
        storage.set(KEYS[:1], [b"x" * largest])
        with pytest.raises(PagesError, match=f"above the limit of {largest} "):
            storage.set(KEYS[1:2], [b"x" * (largest + 1)])
    else:
        storage.set(KEYS[:1], [b"x" * (4 << 20)])


def test_closing_ends_a_call_that_waits(stores, own_valkey):
    storage = stores.open(own_valkey, socket_timeout=60.0)
    storage.set(KEYS[:1], [page(0)])
    own_valkey.pause()
    raised: list[Exception] = []

    def call() -> None:
        try:
            storage.get(KEYS[:1])
        except Exception as error:
            raised.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    while thread.is_alive():
        storage.close()
        thread.join(0.01)
    assert isinstance(raised[0], (PagesError, ValueError))
    with pytest.raises(ValueError, match="closed"):
        storage.get(KEYS[:1])
    storage.close()
    own_valkey.resume()


def test_a_call_that_comes_after_closing_leaves_no_connection(own_valkey):
    """It was under way when another thread closed the store."""
    server = Server(Address(LOOPBACK, own_valkey.port), Login(0, None, None, connect_timeout=1.0, socket_timeout=1.0))
    assert server.ask([(b"PING",)]) == [b"PONG"]
    assert clients(own_valkey) == 2
    server.close()
    assert server.ask([(b"PING",)]) == [b"PONG"]
    while clients(own_valkey) > 1:
        pass  # the server hears of it in a moment


def clients(server) -> int:
    """Connections that a server has, with the one that asks."""
    return len(server.ask("CLIENT", "LIST").splitlines())


def test_a_key_of_another_kind_is_a_miss_that_harms_no_other(stores, valkey):
    storage = stores.open(valkey)
    valkey.ask("LPUSH", stores.name(KEYS[0]), "somebody else's")
    storage.set(KEYS[1:2], [page(1)])
    assert storage.get(KEYS[:3]) == [None, page(1), None]
    with pytest.raises(PagesError, match="WRONGTYPE"):
        storage.get(KEYS[:1])
    storage.set(KEYS[:1], [page(0)])
    assert storage.get(KEYS[:1]) == [page(0)]


class TestFaults(PlantedFaultTests):
    faults = (
        Fault(
            "a page above the limit is sent",
            test_a_page_above_the_limit_is_not_even_sent,
            Replacement(RedisStorage, "set", "<= self._largest]", "<= 2**40]"),
        ),
        Fault(
            "a server that is gone is a miss",
            test_a_killed_server_is_an_error_and_not_a_miss_and_needs_no_new_store_when_it_is_back,
            Replacement(RedisStorage, "_read", "if errors and", "if False and"),
        ),
        Fault(
            "one page that is refused is an error of all",
            test_a_key_of_another_kind_is_a_miss_that_harms_no_other,
            Replacement(RedisStorage, "_read", "len(errors) == len(replies)", "True"),
        ),
    )
