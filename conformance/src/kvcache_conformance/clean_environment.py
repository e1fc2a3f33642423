"""A Python environment with the core, what it needs, and what a test installs; nothing else of what is installed around it.

For tests of plugins as users have them: real distributions with metadata and entry points, found by the real `kvcache` in a
process of its own. It downloads nothing: what is installed already is linked, wheels are unpacked, and distributions can be
written by hand, which is all that installing pure Python comes down to. It knows no plugin.
"""

import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import final

from kvcache_core.registry.descriptors import ENTRY_POINT_GROUP

Done = subprocess.CompletedProcess[str]


@final
class CleanEnvironment:
    """One folder in place of site-packages. Python runs without its own (`-S`), so nothing else is found."""

    def __init__(self, folder: Path) -> None:
        """`folder` is created; what is installed goes into it."""
        self.folder = folder
        folder.mkdir(parents=True)
        self.link("kvcache-core")

    def link(self, distribution: str) -> None:
        """Make a distribution that is installed around us, and what it requires, visible here.

        Raises:
            PackageNotFoundError: it is not installed.
        """
        found = metadata.distribution(distribution)
        entries = {file.parts[0] for file in found.files or () if not file.parts[0].startswith(("..", "__pycache__"))}
        for entry in entries:
            self._link(Path(str(found.locate_file(entry))))
        if any(entry.endswith(".pth") for entry in entries):  # an editable one: its code is elsewhere
            spec = find_spec(distribution.replace("-", "_"))
            for place in () if spec is None else spec.submodule_search_locations or ():
                self._link(Path(place))
        for requirement in found.requires or ():
            name = re.match(r"[\w.-]+", requirement)
            if name is not None and "extra ==" not in requirement and not self._has(name[0]):
                self._link_if_installed(name[0])

    def unpack(self, wheel: Path) -> None:
        """Install a wheel of pure Python."""
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(self.folder)

    def write(
        self,
        distribution: str,
        version: str,
        entry_points: Mapping[str, str],
        files: Mapping[str, str],
        group: str = ENTRY_POINT_GROUP,
    ) -> None:
        """Install a distribution made of `files` (path: text), with entry points (name: target) in one group."""
        points = "".join(f"{name} = {target}\n" for name, target in entry_points.items())
        info = f"{distribution.replace('-', '_')}-{version}.dist-info"
        own = {
            f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n",
            f"{info}/entry_points.txt": f"[{group}]\n{points}",
        }
        for path, text in {**own, **files}.items():
            target = self.folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")

    def kvcache(self, *words: str, cwd: Path) -> Done:
        """Run `kvcache WORDS` in the folder `cwd`."""
        # -P, because the installed `kvcache` does not look for modules in the current folder either.
        return self.python("-P", "-m", "kvcache_core", *words, cwd=cwd)

    def python(self, *words: str, cwd: Path) -> Done:
        """Run `python WORDS` in the folder `cwd`; standard error is part of `stdout`, as on a terminal, and `stderr` is empty."""
        return subprocess.run(
            [sys.executable, "-S", *words],
            cwd=cwd,
            env=dict(os.environ) | {"PYTHONPATH": str(self.folder), "PYTHONUNBUFFERED": "1", "COLUMNS": "100"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
            check=False,
        )

    def _link(self, source: Path) -> None:
        link = self.folder / source.name
        if source.suffix != ".pth" and not link.exists():
            link.symlink_to(source, target_is_directory=source.is_dir())

    def _link_if_installed(self, distribution: str) -> None:
        try:
            self.link(distribution)
        except metadata.PackageNotFoundError:
            return  # a requirement for another system

    def _has(self, distribution: str) -> bool:
        name = re.sub(r"[-_.]+", "_", distribution).lower()
        return any(entry.name.lower().startswith(f"{name}-") for entry in self.folder.glob("*.dist-info"))
