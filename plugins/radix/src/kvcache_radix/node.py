"""Nodes of the tree and what they hold. Data only: no rule of matching, locking or eviction is here.

A node's tokens and indices are `bytes` of int32: one object each, compared by memcmp, sliced by a split, and always copies, so
no caller's array is kept alive or seen to change.
"""

from typing import Protocol

TOKEN_BYTES = 4
INDEX_BYTES = 4
DIGEST_BYTES = 32


class Operation(Protocol):
    """A transfer that refers to cells. It belongs to a cache with tiers; the tree only tells it about splits."""

    def on_split(self, head: "Node") -> None:
        """A node whose cell refers to this operation was cut; `head` is the new upper part and refers to it too."""
        ...


class StoredMarks(Protocol):
    """Which pages of some stretch of tokens the storage has, by position. The tree only hands them on: at a split both parts
    refer to the same marks."""


class Cell:
    """What one node holds of one component.

    `device`, `host`: the indices in that tier as int32 bytes, or None. `locks`: receipts that cover the node. `clock`: last
    touch. `device_kids`, `host_kids`: children that hold this component in that tier. `queued`: bit mask of the victim heaps
    with a live entry. `operation`: the transfer that refers to this cell, for caches with tiers. `stored`: what the storage has
    of this cell's data by its own answers, for caches with storage; None for nothing.
    """

    __slots__ = ("clock", "device", "device_kids", "host", "host_kids", "locks", "operation", "queued", "stored")

    def __init__(self, locks: int = 0, clock: int = 0, device: bytes | None = None, host: bytes | None = None) -> None:
        self.locks = locks
        self.clock = clock
        self.device = device
        self.host = host
        self.device_kids = 0
        self.host_kids = 0
        self.queued = 0
        self.operation: Operation | None = None
        self.stored: StoredMarks | None = None

    @property
    def empty(self) -> bool:
        """No copy anywhere and none on the way."""
        return self.device is None and self.host is None and self.operation is None


class Node:
    """An edge of tokens and its lower end. `end` and the object's identity never change, so handles and receipts survive splits.

    `key`: the edge's tokens. `children`: by the bytes of a child's first page; None while there was none (leaves are most of
    a tree). `number`: order of creation, the tie-break of every decision. A node whose `parent` is None is a root or was deleted.
    `digests`: 32 bytes a page that name the pages in storage, None until a cache with storage asked for them; a root's are those
    of the empty prefix, once.
    """

    __slots__ = ("cells", "children", "digests", "end", "key", "number", "parent")

    def __init__(self, parent: "Node | None", key: bytes, end: int, number: int, cells: tuple[Cell, ...]) -> None:
        self.parent = parent
        self.key = key
        self.end = end
        self.number = number
        self.cells = cells
        self.children: dict[bytes, Node] | None = None
        self.digests: bytes | None = None

    @property
    def start(self) -> int:
        """The position of the first token of the edge."""
        return self.end - len(self.key) // TOKEN_BYTES


class Root(Node):
    """The empty prefix of one extra_key. Its cells hold empty data, so that a walk upwards always ends at something resident."""

    __slots__ = ("extra_key", "owner")

    def __init__(self, extra_key: tuple[bytes, ...], owner: object, number: int, components: int) -> None:
        super().__init__(None, b"", 0, number, tuple(Cell(device=b"", host=b"") for _ in range(components)))
        self.extra_key = extra_key
        self.owner = owner
