"""The distributions of this checkout and their plugins, so that a page does not depend on what else is installed."""

import tomllib
from pathlib import Path
from typing import Any

from kvcache_core.errors import MissingPluginError
from kvcache_core.registry.discovery import discover, installed_sources
from kvcache_core.registry.registry import Registry

ROOT = Path(__file__).parents[2]


def workspace_packages() -> dict[str, Path]:
    """Folders of the import packages by distribution, the core first, the others sorted."""
    return {
        project["project"]["name"]: folder / project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"][0]
        for folder, project in _projects().items()
    }


def workspace_registry() -> Registry:
    """The plugins of this checkout's distributions.

    Raises:
        PluginError: one of them is broken or not installed; its part of the pages would be missing.
    """
    members = workspace_packages()
    registry = Registry(discover(source for source in installed_sources() if source.distribution in members))
    registry.check_strict()
    found = {record.source.distribution for record in registry.records}
    missing = sorted(
        project["project"]["name"]
        for project in _projects().values()
        if "entry-points" in project["project"] and project["project"]["name"] not in found
    )
    if missing:
        raise MissingPluginError(f"not installed: {', '.join(missing)}; `make sync` installs the workspace")
    return registry


def _projects() -> dict[Path, dict[str, Any]]:
    """The parsed pyproject.toml of every member by its folder, the root first."""
    root = _pyproject(ROOT)
    patterns: list[str] = root["tool"]["uv"]["workspace"]["members"]
    folders = sorted(file.parent for pattern in patterns for file in ROOT.glob(f"{pattern}/pyproject.toml"))
    return {ROOT: root} | {folder: _pyproject(folder) for folder in folders}


def _pyproject(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
