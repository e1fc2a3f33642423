"""TreeComponentTests pass on the bare geometries of the kit, and each of its tests notices a component that is wrong there."""

import pytest

from kvcache_conformance.geometries import FULL, RECURRENT, SWA, geometry_of
from kvcache_conformance.tree_component_tests import TreeComponentTests
from kvcache_core.contracts.component import TreeComponent
from kvcache_core.contracts.model_spec import ComponentSpec


class TestFullGeometry(TreeComponentTests):
    spec = FULL
    prefix_closed = True

    def make_component(self, tiers):
        return geometry_of(self.spec, tiers)

    def needs(self, length, position):
        return True


class TestWindowGeometry(TestFullGeometry):
    spec = SWA
    prefix_closed = False

    def needs(self, length, position):
        # The next token sits at `length` and sees `window` tokens, itself included.
        return length - position < self.spec.window


class TestStateGeometry(TestFullGeometry):
    spec = RECURRENT
    prefix_closed = False
    at_node_end = True

    def needs(self, length, position):
        return position == length - 1


class Chunk(TreeComponent):
    """Attention within chunks of 8 tokens. Where one begins nothing is read, and the position before it is asked for."""

    def first_needed(self, length):
        return min(length - length % 8, max(0, length - 1))


class TestChunkGeometry(TestFullGeometry):
    spec = ComponentSpec("chunk", window=8)
    prefix_closed = False

    def make_component(self, tiers):
        return Chunk("chunk", tiers)

    def needs(self, length, position):
        return position // 8 == length // 8 or position == length - 1


class TestWindowOfOne(TestFullGeometry):
    """The own position alone."""

    spec = ComponentSpec("swa", window=1)
    prefix_closed = False

    def needs(self, length, position):
        return length - position < self.spec.window


class Window(TreeComponent):
    """A window of 6 with one thing wrong."""

    def __init__(self, name, tiers, first_needed=lambda length: max(0, length - 5)):
        super().__init__(name, tiers)
        self._first_needed = first_needed

    def first_needed(self, length):
        return self._first_needed(length)


def kit_of(make):
    class Kit(TestWindowGeometry):
        def make_component(self, tiers):
            return make(tiers)

    return Kit()


def growing():
    lengths = []

    def first_needed(length):
        lengths.append(length)
        return max(0, length - 5) + (len(lengths) > 100)

    return first_needed


class ClosedWindow(Window):
    prefix_closed = True


class EndWindow(Window):
    at_node_end = True


WRONG = {
    "test_it_has_the_name_that_the_host_gave_it": lambda tiers: Window("window", tiers),
    "test_its_constants": lambda tiers: ClosedWindow("swa", tiers),
    "test_first_needed_is_the_first_position_that_is_read": lambda tiers: Window("swa", tiers, lambda n: max(0, n - 6)),
    "test_first_needed_lies_within_the_prefix": lambda tiers: Window("swa", tiers, lambda n: n - 5),
    "test_first_needed_never_decreases": lambda tiers: Window("swa", tiers, lambda n: n % 1000),
    "test_it_needs_something_at_every_length_or_at_none": lambda tiers: Window("swa", tiers, lambda n: n - n % 8),
    "test_first_needed_is_a_plain_number_and_remembers_nothing": lambda tiers: Window("swa", tiers, float),
    "test_prefix_closed_means_that_everything_is_read": lambda tiers: ClosedWindow("swa", tiers),
    "test_at_node_end_means_that_the_last_position_stands_for_all": lambda tiers: EndWindow("swa", tiers),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_component_is_noticed(name):
    getattr(kit_of(lambda tiers: Window("swa", tiers)), name)()
    with pytest.raises(AssertionError):
        getattr(kit_of(WRONG[name]), name)()


@pytest.mark.parametrize(
    "first_needed",
    [lambda n: n - n % 8, lambda n: n if n < 6 else max(5, n - 5), lambda n: max(0, n - 5) if n < 100 else n],
    ids=["nothing where a chunk begins", "nothing at first", "nothing in the end"],
)
def test_needs_that_come_and_go_are_noticed_by_one_test_alone(first_needed):
    kit = kit_of(lambda tiers: Window("swa", tiers, first_needed))
    kit.test_first_needed_lies_within_the_prefix()
    kit.test_first_needed_never_decreases()
    with pytest.raises(AssertionError):
        kit.test_it_needs_something_at_every_length_or_at_none()


class ManyTokens(TestFullGeometry):
    """A chunk of 100,000 tokens, which the kit's own lengths do not reach the end of."""

    prefix_closed = False

    def make_component(self, tiers):
        return Window("full", tiers, lambda length: max(0, min(length - length % 100_000, length - 1)))

    def needs(self, length, position):
        return position // 100_000 == length // 100_000 or position == length - 1


class LongEnough(ManyTokens):
    lengths = (1, 99_999, 100_000, 100_001)


def test_lengths_that_show_nothing_are_noticed():
    kit = ManyTokens()
    kit.test_first_needed_is_the_first_position_that_is_read()
    with pytest.raises(AssertionError, match="give `lengths` beyond what the component reads"):
        kit.test_the_lengths_are_long_enough_to_tell()
    LongEnough().test_the_lengths_are_long_enough_to_tell()
    LongEnough().test_first_needed_is_the_first_position_that_is_read()


def test_a_fault_beyond_8192_tokens_is_noticed():
    kit = kit_of(lambda tiers: Window("swa", tiers, lambda n: max(0, n - 5) if n < 8192 else max(0, n - 4)))
    kit.test_first_needed_lies_within_the_prefix()
    with pytest.raises(AssertionError):
        kit.test_first_needed_is_the_first_position_that_is_read()


def test_a_component_with_a_memory_is_noticed():
    first_needed = growing()
    kit = kit_of(lambda tiers: Window("swa", tiers, first_needed))
    with pytest.raises(AssertionError):
        kit.test_first_needed_is_a_plain_number_and_remembers_nothing()


class Forgetful:
    """Tiers that a component put in front of the right ones."""

    def __init__(self, tiers):
        self.tiers = tiers

    def write_through(self, node):
        self.tiers.write_back(node)

    def write_back(self, node):
        self.tiers.write_back(node)

    def prefetch(self, node, indices):
        self.tiers.prefetch(node, indices.copy())


def test_hooks_that_mix_things_up_are_noticed():
    with pytest.raises(AssertionError):
        kit_of(lambda tiers: Window("swa", Forgetful(tiers))).test_its_hooks_hand_on_exactly_what_they_get()


def test_tiers_that_are_shared_are_noticed():
    shared = []

    def make(tiers):
        shared.append(tiers)
        return Window("swa", shared[0])

    with pytest.raises(AssertionError):
        kit_of(make).test_two_components_share_nothing()
