"""The directed tests that every TreeComponent passes: geometry that a tree may rely on, and hooks that only delegate.

    class TestMyComponent(TreeComponentTests):
        spec = ComponentSpec("mine", window=100)

        def make_component(self, tiers):
            return make(None, self.spec, tiers)

        def needs(self, length, position):
            return position > length - 100

`needs` is the model: whether going on from `length` reads the data of `position`, said for one position at a time and without a
formula for the first of them. It does not know trees or caches.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, final

import numpy as np

from kvcache_core.contracts.component import ComponentTiers, TreeComponent
from kvcache_core.contracts.model_spec import ComponentSpec
from kvcache_core.contracts.results import Indices

LENGTHS = (*range(70), 127, 128, 129, 1023, 1024, 4097, 8191, 8192, 8193, 40_000)
"""Beyond most windows, and both sides of where they begin and end."""


@final
class CountingTiers:
    """Writes down what a component hands on."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []

    def write_through(self, node: object) -> None:
        self.calls.append(("write_through", node))

    def write_back(self, node: object) -> None:
        self.calls.append(("write_back", node))

    def prefetch(self, node: object, indices: Indices) -> None:
        self.calls.append(("prefetch", node, indices))


class TreeComponentTests(ABC):
    """Subclass, and give `spec`, `make_component` and `needs`. `prefix_closed`, `at_node_end`: what the component should say.
    `lengths`: what is looked at; some must be longer than what a forward reads, or there is nothing to see."""

    spec: ClassVar[ComponentSpec]
    lengths: ClassVar[Sequence[int]] = LENGTHS
    prefix_closed: ClassVar[bool] = False
    at_node_end: ClassVar[bool] = False

    @abstractmethod
    def make_component(self, tiers: ComponentTiers) -> TreeComponent:
        """Through the factory that the component's descriptor names."""

    @abstractmethod
    def needs(self, length: int, position: int) -> bool:
        """Whether a forward that goes on after `length` tokens reads what `position` (below `length`) left behind."""

    def test_it_has_the_name_that_the_host_gave_it(self) -> None:
        assert self.make_component(CountingTiers()).name == self.spec.name

    def test_its_constants(self) -> None:
        component = self.make_component(CountingTiers())
        assert (component.prefix_closed, component.at_node_end) == (self.prefix_closed, self.at_node_end)
        assert not (component.prefix_closed and component.at_node_end)

    def test_first_needed_is_the_first_position_that_is_read(self) -> None:
        component = self.make_component(CountingTiers())
        for length in self.lengths:
            read = [position for position in range(length) if self.needs(length, position)]
            assert component.first_needed(length) == (read[0] if read else length), f"length {length}"
            assert read == list(range(component.first_needed(length), length)), f"length {length}"

    def test_the_lengths_are_long_enough_to_tell(self) -> None:
        if not self.prefix_closed:
            assert any(not self.needs(length, 0) for length in self.lengths if length), (
                f"every prefix of up to {max(self.lengths)} tokens is read whole: give `lengths` beyond what the component reads"
            )

    def test_first_needed_lies_within_the_prefix(self) -> None:
        component = self.make_component(CountingTiers())
        assert component.first_needed(0) == 0
        for length in self.lengths:
            assert 0 <= component.first_needed(length) <= length

    def test_first_needed_never_decreases(self) -> None:
        """A tree skips lengths on the strength of it."""
        component = self.make_component(CountingTiers())
        found = [component.first_needed(length) for length in self._every_length()]
        assert found == sorted(found)

    def test_it_needs_something_at_every_length_or_at_none(self) -> None:
        """A tree that finds a hole skips all lengths that end in it, and prunes what no length needs."""
        component = self.make_component(CountingTiers())
        assert len({component.first_needed(length) < length for length in self._every_length() if length}) == 1

    def test_first_needed_is_a_plain_number_and_remembers_nothing(self) -> None:
        component = self.make_component(CountingTiers())
        forth = [component.first_needed(length) for length in self.lengths]
        back = [component.first_needed(length) for length in reversed(self.lengths)]
        assert all(type(number) is int for number in forth)
        assert forth == back[::-1]

    def test_prefix_closed_means_that_everything_is_read(self) -> None:
        component = self.make_component(CountingTiers())
        if component.prefix_closed:
            assert not any(component.first_needed(length) for length in self.lengths)

    def test_at_node_end_means_that_the_last_position_stands_for_all(self) -> None:
        component = self.make_component(CountingTiers())
        if component.at_node_end:
            assert all(component.first_needed(length) == length - 1 for length in self.lengths[1:])

    def test_its_hooks_hand_on_exactly_what_they_get(self) -> None:
        tiers = CountingTiers()
        component = self.make_component(tiers)
        assert tiers.calls == []
        node, indices = object(), np.asarray([3, 4], np.int32)
        component.write_through(node)
        component.write_back(node)
        component.prefetch(node, indices)
        assert [call[0] for call in tiers.calls] == ["write_through", "write_back", "prefetch"]
        assert all(call[1] is node for call in tiers.calls)
        assert tiers.calls[2][2] is indices

    def test_two_components_share_nothing(self) -> None:
        first, second = CountingTiers(), CountingTiers()
        self.make_component(first)
        self.make_component(second).write_through(object())
        assert (len(first.calls), len(second.calls)) == (0, 1)

    def _every_length(self) -> Sequence[int]:
        return range(2 * max(self.lengths))
