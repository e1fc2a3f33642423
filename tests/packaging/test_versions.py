"""One version for everything that is released together, and siblings that only accept each other's minor version."""

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

import kvcache_core

VERSION = Version(kvcache_core.__version__)


def test_the_version_is_read_from_the_core(member, root):
    assert member.pyproject["project"]["dynamic"] == ["version"]
    source = member.folder / member.pyproject["tool"]["hatch"]["version"]["path"]
    assert source.resolve() == root / "kvcache_core" / "__init__.py"


def test_siblings_accept_this_minor_version_only(member):
    wanted = [Requirement(text) for text in member.pyproject["project"]["dependencies"]]
    siblings = [requirement for requirement in wanted if requirement.name.startswith("kvcache-")]
    assert siblings or member.name == "kvcache-core"
    for sibling in siblings:
        assert VERSION in sibling.specifier
        assert f"{VERSION.major}.{VERSION.minor + 1}.0" not in sibling.specifier
        lower = [bound.version for bound in sibling.specifier if bound.operator == ">="]
        assert [Version(bound).release[:2] for bound in lower] == [VERSION.release[:2]]


@pytest.mark.parametrize("operator", ["==", "~=", "<", "<="])
def test_nothing_from_outside_is_capped(member, operator):
    """An upper bound in a library blocks everybody's upgrade; only siblings, released together, have one."""
    for text in member.pyproject["project"]["dependencies"]:
        requirement = Requirement(text)
        if not requirement.name.startswith("kvcache-"):
            assert operator not in {bound.operator for bound in requirement.specifier}, text
