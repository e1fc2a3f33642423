"""What each distribution brings, and the lists in the repository's root that have to name every one of them."""

import re

from kvcache_core.registry.known import OUR_PACKAGES


def test_it_brings_a_readme_type_information_and_tests(member, root):
    assert len((member.folder / "README.md").read_text(encoding="utf-8").splitlines()) > 1
    assert member.pyproject["project"]["readme"] == "README.md"
    assert (member.package / "py.typed").is_file()
    assert list((member.folder / "tests").rglob("test_*.py"))


def test_its_entry_points_are_in_the_group_of_this_api(member):
    groups = set(member.pyproject["project"].get("entry-points", {}))
    assert groups <= {"kvcache.v1"}


def test_a_plain_uv_sync_installs_it(member, root_pyproject):
    if member.name == "kvcache-core":
        return
    assert member.name in root_pyproject["dependency-groups"]["dev"]
    assert root_pyproject["tool"]["uv"]["sources"][member.name] == {"workspace": True}


def test_the_import_contracts_cover_it(member, root_pyproject):
    linter = root_pyproject["tool"]["importlinter"]
    assert member.package.name in linter["root_packages"]
    (layers,) = [contract["layers"] for contract in linter["contracts"] if contract["type"] == "layers"]
    assert member.package.name in " | ".join(layers).split(" | ")


def test_pip_alone_installs_it(member, root):
    lines = [line for name in ("run.txt", "test.txt") for line in (root / "requirements" / name).read_text("utf-8").splitlines()]
    paths = {(root / line.removeprefix("-e ")).resolve() for line in lines if line.startswith("-e ")}
    assert member.folder in paths


def test_pip_and_uv_install_the_same_test_tools(root, root_pyproject):
    lines = (root / "requirements" / "test.txt").read_text("utf-8").splitlines()
    assert [line for line in lines if line[:1].isalpha()] == root_pyproject["dependency-groups"]["test"]


def test_no_pip_command_names_what_is_not_ours(members):
    """A name that nobody has registered is an invitation to squat on it."""
    assert set(OUR_PACKAGES.values()) <= {member.name for member in members}


def test_the_architecture_page_names_it_and_what_it_needs(member, root):
    page = (root / "ARCHITECTURE.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1:-1] for line in page.splitlines() if line.startswith("| ")]
    assert any(member.name in _names(row[1]) for row in rows), "the table of folders"
    needs: dict[str, set[str]] = {}
    names: list[str] = []
    for first, needed, *_ in rows[rows.index(next(row for row in rows if row[1].strip() == "needs")) + 1 :]:
        names = _names(first) or names  # a row without a name goes on with the one before
        for name in names:
            needs.setdefault(name, set()).update(part.strip() for part in needed.split(","))
    foreign = {re.split("[<>=~!]", text)[0] for text in member.pyproject["project"]["dependencies"]}
    foreign = {name for name in foreign if not name.startswith("kvcache-")}
    written = {name for name in needs[member.name] if name and not name.startswith(("kvcache-", "("))}
    assert written == foreign


def _names(cell: str) -> list[str]:
    """`kvcache-storage-file, -redis` is two distributions."""
    first, *more = [part.strip() for part in cell.split(",")]
    return [first, *(first.rpartition("-")[0] + part if part.startswith("-") else part for part in more)] if first else []
