"""Sizes as people write them, for fields of the core and of plugins' options. It knows no field."""

import re
from typing import Annotated

from pydantic import BeforeValidator

from kvcache_core.config.slot import problem

_UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_SIZE = re.compile(r"^(\d+) ?(KiB|MiB|GiB|TiB)$")


def _bytes(value: object) -> object:
    if not isinstance(value, str):
        return value
    match = _SIZE.match(value)
    if match is None:
        units = ", ".join(_UNITS)
        raise problem(f"must be a number of bytes, or a whole number with a unit such as '4GiB' ({units}), not {value!r}")
    return int(match[1]) * _UNITS[match[2]]


SizeInBytes = Annotated[int | None, BeforeValidator(_bytes)]
"""The type of a field that takes a number of bytes, a text such as '4GiB', or nothing. Bounds are the field's own."""
