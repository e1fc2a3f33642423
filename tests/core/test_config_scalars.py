"""Scalars of configuration files: what a reader of YAML 1.2 sees, and the same again after it was written down."""

import math

import pytest
import yaml

from kvcache_core.config.core_schema import dump
from kvcache_core.config.located import LocatedDocument


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("16", 16),
        ("+16", 16),
        ("0", 0),
        ("0x10", 16),
        ("0o20", 16),
        ("1e3", 1000.0),
        ("1E+3", 1000.0),
        ("-.5", -0.5),
        ("2.", 2.0),
        ("0.25", 0.25),
        ("-.inf", -math.inf),
        ("true", True),
        ("False", False),
        ("~", None),
        ("", None),
        ("no", "no"),
        ("2026-02-31", "2026-02-31"),
        ("'010'", "010"),
        ('"1_6"', "1_6"),
        ("!!str 010", "010"),
        ("!!float 3", 3.0),
        ("1.2.3", "1.2.3"),
        ("10.0.0.1:6379", "10.0.0.1:6379"),
    ],
)
def test_scalars_are_read_by_the_core_schema_and_written_so_that_they_are_read_back(text: str, value: object):
    """YAML 1.2, section 10.3.2."""
    for written in (f"a: {text}\n", dump({"a": value})):
        document = LocatedDocument("here", written)
        assert document.problems == ()
        assert document.data == {"a": value}
        assert type(document.data["a"]) is type(value)


@pytest.mark.parametrize("word", ["1e3", "yes", "0o17", "010", "1:30", "1_6", "0b1", "=", "<<", "null", "2026-02-03", "~", ""])
def test_a_word_stays_a_word_when_it_is_written_down(word: str):
    assert LocatedDocument("here", dump({"a": word})).data == {"a": word}
    assert yaml.safe_load(dump({"a": word})) == {"a": word}
