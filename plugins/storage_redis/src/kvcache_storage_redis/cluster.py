"""A store over the nodes of a cluster. Each node answers for its own keys, or fails alone: the client library's cluster would
give up a whole pipeline because of one node, and wait for seconds before it does.
"""

import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, final

from redis.exceptions import AskError, MovedError, ResponseError

from kvcache_storage_redis.errors import Address, ServerError, advice_for, one_line
from kvcache_storage_redis.fleet import Clock, Fleet, Request, ask_one, monotonic
from kvcache_storage_redis.rest import REST, Rest
from kvcache_storage_redis.server import Reply, Server
from kvcache_storage_redis.slots import SlotMap, SlotRange, parse_slots
from kvcache_storage_redis.wire import Command


class _Node:
    def __init__(self, server: Server, clock: Clock) -> None:
        self.server = server
        self.rest = Rest(server.address, clock)


@final
class Cluster(Fleet):
    """Thread safe. What the nodes say about slots is asked again when one of them names another (MOVED), and while one fails."""

    def __init__(
        self, seeds: Sequence[Address], connect: Callable[[Address], Server], pipeline_bytes: int, clock: Clock = monotonic
    ) -> None:
        """`seeds`: nodes to ask who the others are. Raises ServerError: none of them tells."""
        self._seeds = tuple(seeds)
        self._connect = connect
        self._pipeline_bytes = pipeline_bytes
        self._clock = clock
        self._lock = threading.Lock()
        self._nodes: dict[Address, _Node] = {}
        self._map = SlotMap(())
        self._asked = 0.0
        self._closed = False
        try:
            self._learn()
        except ServerError:
            self.close()
            raise

    def ask(self, requests: Sequence[Request]) -> list[Reply]:
        self._learn_from_failures()
        replies: list[Reply] = [None] * len(requests)
        self._by_node(range(len(requests)), requests, replies)
        moved = [at for at, reply in enumerate(replies) if isinstance(reply, MovedError)]
        if moved:
            self._learn_quietly()
            self._by_node(moved, requests, replies)
        for at, reply in enumerate(replies):
            if isinstance(reply, AskError):
                replies[at] = self._ask_named(requests[at], reply)
        return replies

    def some_answer(self) -> bool:
        return any(self._node(address).rest.error is None for address in self._map.addresses)

    def servers(self) -> Sequence[Server]:
        return [self._node(address).server for address in self._map.addresses]

    def close(self) -> None:
        with self._lock:
            self._closed = True
            nodes, self._nodes = self._nodes, {}
        for node in nodes.values():
            node.server.close()

    def _by_node(self, places: Sequence[int], requests: Sequence[Request], replies: list[Reply]) -> None:
        """Fill `replies` at `places`."""
        by_address: defaultdict[Address | None, list[int]] = defaultdict(list)
        known = self._map
        for at in places:
            by_address[known.address_of(requests[at].key)].append(at)
        for address, mine in by_address.items():
            for at, reply in zip(mine, self._ask_node(address, [requests[at] for at in mine]), strict=True):
                replies[at] = reply

    def _ask_node(self, address: Address | None, requests: Sequence[Request]) -> list[Reply]:
        if address is None:
            seed = self._seeds[0]
            return [ServerError(seed, "no node of the cluster has the slots of some pages")] * len(requests)
        node = self._node(address)
        error = node.rest.turned_away()
        if error is not None:
            return [error] * len(requests)
        replies = ask_one(node.server, requests, self._pipeline_bytes)
        if isinstance(replies[-1], ServerError):
            node.rest.failed(replies[-1])
        else:
            node.rest.answered()
        return replies

    def _ask_named(self, request: Request, reply: AskError) -> Reply:
        """The key's slot is on its way to another node, which answers for it only when it is told so (ASKING), or it has moved
        and the nodes that were asked about it have not heard of that."""
        named: Any = reply  # the library leaves out types here
        known = self._map.address_of(request.key)
        # A node that does not know its name leaves it out: then it is that of the one which said so.
        address = Address(str(named.host) or (known or self._seeds[0]).host, int(named.port))
        asking: list[Command] = [] if isinstance(reply, MovedError) else [(b"ASKING",)]
        try:
            return self._node(address).server.ask([*asking, request.command])[-1]
        except ServerError as error:
            return error

    def _node(self, address: Address) -> _Node:
        with self._lock:
            node = self._nodes.get(address)
            if node is None:
                node = _Node(self._connect(address), self._clock)
                if not self._closed:
                    self._nodes[address] = node
            return node

    def _learn_from_failures(self) -> None:
        """A node that fails may have been replaced."""
        with self._lock:
            due = self._clock() - self._asked >= REST and any(node.rest.error is not None for node in self._nodes.values())
            if due:
                self._asked = self._clock()
        if due:
            self._learn_quietly()

    def _learn_quietly(self) -> None:
        try:
            self._learn()
        except ServerError:
            # What is known stays; the pages' own errors say more.
            return

    def _learn(self) -> None:
        """Ask one node after the other, those that answer first. Raises the first one's ServerError."""
        with self._lock:
            well = [address for address, node in self._nodes.items() if node.rest.error is None]
        first: ServerError | None = None
        for address in dict.fromkeys([*well, *self._seeds, *self._map.addresses]):
            try:
                self._map = SlotMap(self._ranges(address))
            except ServerError as error:
                first = first or error
            else:
                self._asked = self._clock()
                return
        assert first is not None
        raise first

    def _ranges(self, address: Address) -> list[SlotRange]:
        (reply,) = self._node(address).server.ask([(b"CLUSTER", b"SLOTS")])
        if isinstance(reply, ResponseError):
            raise ServerError(
                address, one_line(reply), advice_for(reply) or "is it a node of a cluster? else leave out 'cluster'"
            )
        try:
            ranges = parse_slots(reply, address)
        except ValueError as error:
            raise ServerError(address, str(error)) from error
        if not ranges:
            raise ServerError(address, "its cluster has no slots", "join its nodes to a cluster, or leave out 'cluster'")
        return ranges
