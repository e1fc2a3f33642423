"""A cluster of three nodes: one hangs, is killed, comes back, gives slots away. The others' pages are served all the while."""

import logging
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from redis.crc import key_slot

from kvcache_conformance.mutants import Fault, PlantedFaultTests, Replacement
from kvcache_conformance.redis_servers import running_replica, valkey_command, wait_for_cluster
from kvcache_conformance.server_process import LOOPBACK
from kvcache_conformance.storage_numbered import numbered_key
from kvcache_core.contracts.storage import NotAllStoredError, StorageScope
from kvcache_storage_redis.cluster import Cluster
from kvcache_storage_redis.errors import Address, PagesError, ServerError
from kvcache_storage_redis.fleet import Request, pipelines
from kvcache_storage_redis.names import Names
from kvcache_storage_redis.rest import REST, Rest
from kvcache_storage_redis.server import Login, Server
from kvcache_storage_redis.slots import SlotMap, SlotRange, parse_slots
from kvcache_storage_redis.storage import RedisStorage

KEYS = [numbered_key(number) for number in range(60)]
VALUES = [key.encode() * 20 for key in KEYS]


class Clock:
    """Time that only a test lets pass."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Opened:
    """A store on a cluster, whose nodes are left alone for as long as the test wants."""

    def __init__(self, servers, prefix: str) -> None:
        self.clock = Clock()
        self.servers = servers
        self.names = Names(prefix, StorageScope("model", 16))
        login = Login(0, None, None, connect_timeout=1.0, socket_timeout=1.0)
        seeds = [Address(LOOPBACK, server.port) for server in servers]
        self.fleet = Cluster(seeds, lambda address: Server(address, login), 1 << 20, self.clock)
        self.storage = RedisStorage(self.fleet, self.names, (), largest=1 << 20)

    def on(self, at: int) -> list[int]:
        """Numbers of the keys that node `at` of three has."""
        third = [key_slot(self.names.name(key)) * 3 // 16384 for key in KEYS]
        return [number for number, found in enumerate(third) if found == at]


@pytest.fixture
def opened(stores, own_cluster) -> Iterator[Opened]:
    with ExitStack() as closing:
        made = Opened(own_cluster, stores.prefix)
        closing.callback(made.storage.close)
        yield made


def test_pages_are_spread_and_each_is_on_the_node_of_its_slot(opened):
    opened.storage.set(KEYS, VALUES)
    for at, server in enumerate(opened.servers):
        mine = opened.on(at)
        assert len(mine) > 5
        assert server.ask("DBSIZE") == len(mine)
        assert all(server.ask("GET", opened.names.name(KEYS[number])) == VALUES[number] for number in mine)
    assert opened.storage.get(KEYS[::-1]) == VALUES[::-1]
    assert sorted(page.key for page in opened.storage.scan()) == sorted(KEYS)


@pytest.mark.parametrize("how", ["pause", "kill"])
def test_one_node_that_is_gone_costs_its_own_pages_and_no_others(opened, caplog, how):
    caplog.set_level(logging.WARNING)
    storage, gone = opened.storage, opened.on(1)
    storage.set(KEYS, VALUES)
    getattr(opened.servers[1], how)()
    left = [None if number in gone else value for number, value in enumerate(VALUES)]
    for _ in range(3):
        assert storage.get(KEYS) == left
        assert storage.exists(KEYS) == [value is not None for value in left]
    with pytest.raises(NotAllStoredError, match=f"{len(gone)} of 60 pages were not stored: .*{opened.servers[1].port}") as caught:
        storage.set(KEYS, [value * 2 for value in VALUES])
    assert caught.value.missing == {KEYS[number] for number in gone}
    # A batch of the gone node's pages alone is no sign that the store is gone.
    assert storage.get([KEYS[number] for number in gone]) == [None] * len(gone)
    with pytest.raises(NotAllStoredError, match="2 of 2 pages"):
        storage.set([KEYS[number] for number in gone[:2]], [b"x", b"y"])
    assert storage.get(KEYS) == [value and value * 2 for value in left]
    # Asked once, and left alone for all the other calls: said once.
    assert [record.message for record in caplog.records if "its pages are misses" in record.message] == caplog.messages
    assert len(caplog.messages) == 1

    if how == "pause":
        opened.servers[1].resume()
    else:
        opened.servers[1].start()
        wait_for_cluster(opened.servers)
    assert storage.get(KEYS) == [value and value * 2 for value in left]  # still left alone
    opened.clock.now += REST
    back = storage.get(KEYS)
    assert [back[number] for number in gone] == [VALUES[number] if how == "pause" else None for number in gone]
    assert caplog.messages[1:] == [f"storage 'redis': 127.0.0.1:{opened.servers[1].port} answers again"]
    storage.set(KEYS, VALUES)
    assert storage.get(KEYS) == VALUES


def test_only_one_call_tries_a_node_whose_rest_is_over():
    clock = Clock()
    rest = Rest(Address("host", 1), clock)
    assert rest.turned_away() is None
    error = ServerError(Address("host", 1), "gone")
    rest.failed(error)
    assert rest.turned_away() is error
    clock.now += REST
    assert [rest.turned_away(), rest.turned_away()] == [None, error]
    rest.answered()
    assert rest.turned_away() is None


def test_all_nodes_gone_is_an_error(opened):
    for server in opened.servers:
        server.kill()
    for _ in range(2):
        with pytest.raises(PagesError, match="60 of 60 pages were not answered for"):
            opened.storage.get(KEYS)
        with pytest.raises(PagesError, match="60 of 60 pages were not stored"):
            opened.storage.set(KEYS, VALUES)


def test_a_store_opens_while_one_node_is_gone(stores, own_cluster, caplog):
    own_cluster[0].kill()
    storage = stores.open_cluster(own_cluster)
    with pytest.raises(NotAllStoredError, match=f"were not stored: .*{own_cluster[0].port}"):
        storage.set(KEYS, VALUES)
    assert len([value for value in storage.get(KEYS) if value is not None]) > 20
    assert [found.address.port for found in storage.facts] == [server.port for server in own_cluster[1:]]
    assert f"{own_cluster[0].port}: ConnectionError" in caplog.text


def give_away(servers, slot: int, old: int, new: int) -> None:
    """A slot without keys goes from one node to another."""
    for server in (servers[new], servers[old], servers[3 - old - new]):
        server.ask("CLUSTER", "SETSLOT", slot, "NODE", servers[new].ask("CLUSTER", "MYID"))


def test_a_slot_that_has_moved_is_followed(opened):
    (number, *_) = opened.on(0)
    give_away(opened.servers, key_slot(opened.names.name(KEYS[number])), 0, 2)
    opened.storage.set(KEYS, VALUES)
    assert opened.servers[2].ask("GET", opened.names.name(KEYS[number])) == VALUES[number]
    assert opened.storage.get(KEYS) == VALUES
    # Only once: all that follows goes to the right node.
    assert opened.fleet._map.address_of(opened.names.name(KEYS[number])) == Address(LOOPBACK, opened.servers[2].port)


def test_a_slot_that_has_moved_is_followed_although_no_node_has_heard_of_it(opened, monkeypatch):
    """What the nodes say of slots is old for some moments."""
    (number, *_) = opened.on(0)
    give_away(opened.servers, key_slot(opened.names.name(KEYS[number])), 0, 2)
    monkeypatch.setattr(Cluster, "_learn_quietly", lambda self: None)
    opened.storage.set(KEYS, VALUES)
    assert opened.servers[2].ask("GET", opened.names.name(KEYS[number])) == VALUES[number]
    assert opened.storage.get(KEYS) == VALUES
    assert opened.storage.get(KEYS[number : number + 1]) == [VALUES[number]]


def test_a_slot_on_its_way_is_answered_for_by_both_nodes(opened):
    (number, *_) = opened.on(0)
    old, new = opened.servers[0], opened.servers[2]
    slot = key_slot(opened.names.name(KEYS[number]))
    new.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", old.ask("CLUSTER", "MYID"))
    old.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", new.ask("CLUSTER", "MYID"))
    opened.storage.set(KEYS, VALUES)
    assert opened.storage.get(KEYS) == VALUES
    assert opened.storage.exists(KEYS) == [True] * 60
    old.ask("CLUSTER", "SETSLOT", slot, "STABLE")
    assert opened.storage.get(KEYS[number : number + 1]) == [None]  # it went to the new one


def test_a_replica_that_takes_over_is_found(opened, tmp_path):
    storage = opened.storage
    storage.set(KEYS, VALUES)
    with running_replica(valkey_command(), tmp_path / "replica", opened.servers, 1) as replica:
        opened.servers[1].kill()
        assert storage.get(KEYS) == [None if number in opened.on(1) else value for number, value in enumerate(VALUES)]
        replica.ask("CLUSTER", "FAILOVER", "TAKEOVER")
        for server in (opened.servers[0], opened.servers[2]):
            while replica.port not in {entry[2][1] for entry in server.ask("CLUSTER", "SLOTS")}:
                pass  # they hear of it in a moment
        opened.clock.now += REST
        assert storage.get(KEYS) == VALUES
        storage.set(KEYS[:5], VALUES[5:10])
        assert storage.get(KEYS[:5]) == VALUES[5:10]


def test_slots_that_no_node_has_are_errors_of_their_pages_alone(opened):
    (number, *_) = opened.on(0)
    slot = key_slot(opened.names.name(KEYS[number]))
    for server in opened.servers:
        server.ask("CLUSTER", "DELSLOTS", slot)
    with pytest.raises(NotAllStoredError, match="1 of 60 pages were not stored"):
        opened.storage.set(KEYS, VALUES)
    assert opened.storage.get(KEYS) == [*VALUES[:number], None, *VALUES[number + 1 :]]


def test_what_nodes_say_of_slots_is_read():
    asked = Address("asked", 7)
    reply = [[0, 5, [b"10.0.0.1", 1, b"id"], [b"replica", 2, b"id"]], [6, 6, [b"", 3, b"id"]], [9, 9, [None, 4]]]
    ranges = parse_slots(reply, asked)
    assert ranges == [
        SlotRange(0, 5, Address("10.0.0.1", 1)),
        SlotRange(6, 6, Address("asked", 3)),
        SlotRange(9, 9, Address("asked", 4)),
    ]
    assert SlotMap(ranges).addresses == tuple(found.address for found in ranges)
    for wrong in (None, [[0]], [[0, 1, 2]], 5):
        with pytest.raises(ValueError, match="CLUSTER SLOTS"):
            parse_slots(wrong, asked)


def test_pipelines_are_cut_by_bytes_and_by_number():
    def cut(sizes, most):
        return [[request.nbytes for request in some] for some in pipelines([Request(b"", (), n) for n in sizes], most)]

    assert cut([], 10) == []
    assert cut([4, 4, 4], 8) == [[4, 4], [4]]
    assert cut([20, 1, 20, 20], 10) == [[20], [1], [20], [20]]
    assert cut([0, 10, 0], 10) == [[0, 10, 0]]
    assert [len(some) for some in cut([0] * 2500, 10)] == [1024, 1024, 452]


class TestClusterFaults(PlantedFaultTests):
    faults = (
        Fault(
            "all calls wait for a node whose rest is over",
            test_only_one_call_tries_a_node_whose_rest_is_over,
            Replacement(Rest, "turned_away", "self._until = self._clock() + REST", "pass"),
        ),
        Fault(
            "all nodes gone are misses",
            test_all_nodes_gone_is_an_error,
            Replacement(RedisStorage, "_others_answer", "self._fleet.some_answer()", "True"),
        ),
        Fault(
            "what has moved is asked for anew each time",
            test_a_slot_that_has_moved_is_followed,
            Replacement(Cluster, "ask", "isinstance(reply, MovedError)]", "False]"),
        ),
        Fault(
            "a slot that has moved is only where the nodes say it is",
            test_a_slot_that_has_moved_is_followed_although_no_node_has_heard_of_it,
            Replacement(Cluster, "ask", "isinstance(reply, AskError)", "False"),
        ),
        Fault(
            "the newcomer of a slot is asked as if it had it",
            test_a_slot_on_its_way_is_answered_for_by_both_nodes,
            Replacement(Cluster, "_ask_named", "[*asking, request.command]", "[request.command]"),
        ),
        Fault(
            "a node that is gone keeps the store from opening",
            test_a_store_opens_while_one_node_is_gone,
            Replacement(Cluster, "_learn", "*well, *self._seeds, *self._map.addresses", "*self._seeds[:1]"),
        ),
    )
