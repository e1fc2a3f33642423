"""FullComponent through its factory passes the kit: everything before is needed."""

from kvcache_component_full.component import make
from kvcache_conformance.tree_component_tests import TreeComponentTests
from kvcache_core.contracts.model_spec import ComponentSpec


class TestFullComponent(TreeComponentTests):
    spec = ComponentSpec("full")
    prefix_closed = True

    def make_component(self, tiers):
        return make(None, self.spec, tiers)

    def needs(self, length, position):
        return True
