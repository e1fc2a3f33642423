"""RecurrentStateComponent through its factory passes the kit: the last position alone is needed."""

from kvcache_component_recurrent.component import make
from kvcache_conformance.tree_component_tests import TreeComponentTests
from kvcache_core.contracts.model_spec import ComponentSpec


class TestRecurrentStateComponent(TreeComponentTests):
    spec = ComponentSpec("recurrent", state_shape=(2, 4, 4))
    at_node_end = True

    def make_component(self, tiers):
        return make(None, self.spec, tiers)

    def needs(self, length, position):
        return position == length - 1
