"""What the tree asks of a component. A `TreeComponent` of the core satisfies it; so does a class of three lines in a test.

It does not know nodes, tiers or indices.
"""

from typing import Protocol


class Geometry(Protocol):
    """How much of a prefix one kind of attention needs.

    `first_needed(length)` must not decrease with `length`, and 0 <= first_needed(length) <= length: the tree skips lengths on
    the strength of it.
    """

    @property
    def name(self) -> str: ...

    @property
    def prefix_closed(self) -> bool:
        """Device data is a prefix of every path; a tree has at most one such component, and its `first_needed` is 0."""
        ...

    @property
    def at_node_end(self) -> bool:
        """One unit at a node's end instead of one a page."""
        ...

    def first_needed(self, length: int) -> int: ...
