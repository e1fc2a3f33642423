"""The lower bounds that the workspace's distributions declare for packages from outside, for CI's lowest-versions lane.

Without arguments it prints them, one a line, for a resolver that takes the lowest of each. With --check, run by the
Python that has them installed, it fails when another version came: then a declared bound is not one that works.
"""

import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

from packaging.version import Version

ROOT = Path(__file__).parents[1]


def declared() -> list[str]:
    """Requirements of every member and of the test tools, siblings left out, without duplicates."""
    root = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    folders = [ROOT, *(folder for pattern in root["tool"]["uv"]["workspace"]["members"] for folder in sorted(ROOT.glob(pattern)))]
    found = list(root["dependency-groups"]["test"])
    for folder in folders:
        found += tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    return sorted({text for text in found if not text.startswith("kvcache-")})


def bounds() -> dict[str, Version]:
    """The highest lower bound of each package; all of ours are plain `name>=version`."""
    highest: dict[str, Version] = {}
    for text in declared():
        name, lower = text.split(">=")
        name = name.partition("[")[0]  # extras bring packages with bounds of their own
        highest[name] = max(highest.get(name, Version(lower)), Version(lower))
    return highest


def main() -> int:
    if sys.argv[1:] != ["--check"]:
        print("\n".join(declared()))
        return 0
    wrong = [
        f"{name}: {lower} is declared, {version(name)} was installed"
        for name, lower in bounds().items()
        if Version(version(name)) != lower
    ]
    print("\n".join(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
