"""SWAComponent through its factory passes the kit, for windows from one token to many pages."""

import pytest

from kvcache_component_swa.component import SWAComponent, make
from kvcache_conformance.tree_component_tests import TreeComponentTests
from kvcache_core.contracts.model_spec import ComponentSpec
from kvcache_core.errors import ConfigError


class WindowTests(TreeComponentTests):
    window: int

    @property
    def spec(self):
        return ComponentSpec("swa", window=self.window)

    def make_component(self, tiers):
        return make(None, self.spec, tiers)

    def needs(self, length, position):
        return length - position < self.window


class TestWindowOfOne(WindowTests):
    window = 1


class TestWindowOf16(WindowTests):
    window = 16


class TestWindowOf100(WindowTests):
    window = 100


@pytest.mark.parametrize("window", [None, 0, -4])
def test_a_model_without_a_window_is_refused(window):
    with pytest.raises(ConfigError, match=f"needs a window .* not {window}"):
        make(None, ComponentSpec("swa", window=window), None)


def test_a_window_below_one_is_refused():
    with pytest.raises(ValueError, match="at least 1, not 0"):
        SWAComponent("swa", 0, None)
