"""Named faults planted in code under test, and the tests that each must fail: a directed test is worth something only then.

A fault by `Replacement` stays tied to the code: when the expression is no longer there exactly once, planting it fails, and
somebody has to look. Others are functions that patch what they need.
"""

import inspect
import sys
import textwrap
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, ClassVar, NamedTuple

import pytest

from kvcache_core.errors import KVCacheError

NOTICED: tuple[type[BaseException], ...] = (AssertionError, KVCacheError, pytest.fail.Exception)
"""How a test rejects code under test. Any other exception is a crash, and no proof that the test looks at the right thing."""

Plant = Callable[[pytest.MonkeyPatch], None]
"""Plants a fault until the monkeypatch undoes it."""


class Fault(NamedTuple):
    """`name` says what is wrong; `test` must notice it, and is called with the fixtures that its parameters name. As in pytest, a
    parameter that has a value already is none."""

    name: str
    test: Callable[..., None]
    plant: Plant


class Replacement(NamedTuple):
    """`old` in the source of the function `name` of a class or module becomes `new`."""

    owner: type[Any] | ModuleType
    name: str
    old: str
    new: str

    def __call__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Raises AssertionError when the source has changed."""
        member = inspect.getattr_static(self.owner, self.name)
        function = member.fget if isinstance(member, property) else member
        assert function is not None
        source = textwrap.dedent(inspect.getsource(function))
        found = source.count(self.old)
        assert found == 1, f"{self.old!r} is {found} times in {self.owner.__name__}.{self.name}"
        module = sys.modules[function.__module__]
        made: dict[str, Any] = {}
        code = source.replace(self.old, self.new)
        exec(compile(code, f"<planted in {self.owner.__name__}.{self.name}>", "exec"), vars(module), made)
        monkeypatch.setattr(self.owner, self.name, made[self.name])


class PlantedFaultTests:
    """Subclass in a test module and set `faults`."""

    faults: ClassVar[Sequence[Fault]]

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        metafunc.parametrize("fault", self.faults, ids=[fault.name for fault in self.faults])

    def test_a_planted_fault_is_noticed(
        self, fault: Fault, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
    ) -> None:
        parameters = inspect.signature(fault.test).parameters.values()
        arguments = {each.name: request.getfixturevalue(each.name) for each in parameters if each.default is each.empty}
        fault.plant(monkeypatch)
        with pytest.raises(NOTICED):
            fault.test(**arguments)
