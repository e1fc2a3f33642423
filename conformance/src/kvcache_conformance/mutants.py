"""Named faults planted in code under test: one method is compiled again from its source with one expression replaced.

A mutant stays tied to the code: when the expression is no longer there exactly once, planting it fails, and somebody has to look.
"""

import inspect
import sys
import textwrap
from typing import Any, NamedTuple

import pytest


class Mutant(NamedTuple):
    """`old` in the source of `cls.method` becomes `new`."""

    name: str
    cls: type[Any]
    method: str
    old: str
    new: str

    def plant(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Until `monkeypatch` undoes it. Raises AssertionError when the source has changed."""
        member = inspect.getattr_static(self.cls, self.method)
        function = member.fget if isinstance(member, property) else member
        assert function is not None
        source = textwrap.dedent(inspect.getsource(function))
        found = source.count(self.old)
        assert found == 1, f"{self.name}: {self.old!r} is {found} times in {self.cls.__name__}.{self.method}"
        module = sys.modules[self.cls.__module__]
        made: dict[str, Any] = {}
        exec(compile(source.replace(self.old, self.new), f"<mutant {self.name}>", "exec"), vars(module), made)
        monkeypatch.setattr(self.cls, self.method, made[self.method])
