"""Where a component's hooks leave what they were asked for, until the cache takes it up in the same call.

It decouples the order of construction: a component exists before the tree that is built over it.
"""

from typing import NamedTuple, cast, final

from kvcache_core.contracts.results import Indices
from kvcache_radix.node import Node


class LoadRequest(NamedTuple):
    """Bring the host data of `node` to the device pages `indices`."""

    node: Node
    indices: Indices


@final
class HookRequests:
    """Implements the core's `ComponentTiers` for one component. Each `take_...` hands over and forgets.

    Nodes are opaque to a component; what comes back here is what the cache gave it.
    """

    def __init__(self) -> None:
        self._backups: list[Node] = []
        self._persists: list[Node] = []
        self._loads: list[LoadRequest] = []

    def write_through(self, node: object) -> None:
        self._backups.append(cast(Node, node))

    def write_back(self, node: object) -> None:
        self._persists.append(cast(Node, node))

    def prefetch(self, node: object, indices: Indices) -> None:
        self._loads.append(LoadRequest(cast(Node, node), indices))

    def take_backups(self) -> list[Node]:
        taken, self._backups = self._backups, []
        return taken

    def take_persists(self) -> list[Node]:
        taken, self._persists = self._persists, []
        return taken

    def take_loads(self) -> list[LoadRequest]:
        taken, self._loads = self._loads, []
        return taken
