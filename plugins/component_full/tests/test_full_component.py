"""FullComponent through its factory: geometry, and hooks that only delegate."""

import numpy as np
import pytest
from kvcache_component_full.component import make
from kvcache_core.contracts.model_spec import ComponentSpec


class Tiers:
    def __init__(self):
        self.calls = []

    def write_through(self, node):
        self.calls.append(("write_through", node))

    def write_back(self, node):
        self.calls.append(("write_back", node))

    def prefetch(self, node, indices):
        self.calls.append(("prefetch", node, indices.tolist()))


@pytest.fixture
def tiers():
    return Tiers()


def test_geometry(tiers):
    component = make(None, ComponentSpec("full"), tiers)
    assert component.name == "full"
    assert component.prefix_closed
    assert not component.at_node_end
    assert [component.first_needed(n) for n in (0, 1, 16, 100_000)] == [0, 0, 0, 0]


def test_hooks_delegate(tiers):
    component = make(None, ComponentSpec("full"), tiers)
    node = object()
    component.write_through(node)
    component.write_back(node)
    component.prefetch(node, np.array([3, 4], np.int32))
    assert tiers.calls == [("write_through", node), ("write_back", node), ("prefetch", node, [3, 4])]
