"""What a component is asked when a cache is built: each rule of the contract, broken by itself, and named with the plugin."""

import pytest

from kvcache_core.component_check import LENGTHS, checked_component
from kvcache_core.contracts.component import TreeComponent
from kvcache_core.contracts.model_spec import ComponentSpec
from kvcache_core.errors import ConfigError, PluginError

SPEC = ComponentSpec("mine", window=8)


class Tiers:
    def write_through(self, node): ...
    def write_back(self, node): ...
    def prefetch(self, node, indices): ...


def made(first_needed, name="mine", **constants):
    kind = type("Mine", (TreeComponent,), {"first_needed": lambda self, length: first_needed(length), **constants})
    return checked_component(lambda options, spec, tiers: kind(name, tiers), "acme 1.0")(None, SPEC, Tiers())


SOUND = {
    "full": (lambda length: 0, {"prefix_closed": True}),
    "window": (lambda length: max(0, length - 8), {}),
    "the own position alone": (lambda length: length, {}),
    "state": (lambda length: max(0, length - 1), {"at_node_end": True}),
    "chunks": (lambda length: max(0, min(length - length % 8192, length - 1)), {}),
}


@pytest.mark.parametrize("name", SOUND)
def test_what_keeps_the_contract_is_given_out(name):
    first_needed, constants = SOUND[name]
    component = made(first_needed, **constants)
    assert [component.first_needed(length) for length in LENGTHS] == [first_needed(length) for length in LENGTHS]


BROKEN = {
    "beyond": (lambda length: length + 5, {}, r"first_needed\(0\) is 5"),
    "negative": (lambda length: length - 8, {}, r"first_needed\(0\) is -8"),
    "a float": (lambda length: length / 2, {}, r"first_needed\(0\) is 0\.0"),
    "decreases": (lambda length: 5 if length == 70 else 0, {}, "decreases from 5 at 70 to 0 at 71"),
    "chunks": (lambda length: length - length % 8, {}, "at every length or at none"),
    "long chunks": (lambda length: length - length % 65_536, {}, "at length 1 and for none at 65536"),
    "closed": (lambda length: max(0, length - 8), {"prefix_closed": True}, "prefix_closed says"),
    "at the end": (lambda length: max(0, length - 8), {"at_node_end": True}, "at_node_end says"),
    "both": (lambda length: 0, {"prefix_closed": True, "at_node_end": True}, "exclude each other"),
    "another name": (lambda length: 0, {"name": "yours"}, "it is called 'yours'"),
    "raises": (lambda length: 1 // (length - 64), {}, r"cannot be made: ZeroDivisionError"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_breaks_it_is_an_error_that_names_the_plugin(name):
    first_needed, constants, said = BROKEN[name]
    with pytest.raises(PluginError, match=rf"component 'mine' of acme 1\.0 .*{said}"):
        made(first_needed, **constants)


def test_what_a_component_says_of_the_model_stays_its_own_error():
    def refuses(options, spec, tiers):
        raise ConfigError("this model has no window")

    with pytest.raises(ConfigError, match="has no window"):
        checked_component(refuses, "acme 1.0")(None, SPEC, Tiers())
