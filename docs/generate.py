"""Writes docs/reference anew from the code (`make docs`), or says which pages are stale (`--check`, exit status 1).

Nothing else writes there. The result depends on the checkout alone: not on what else is installed, nor on the terminal.
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from reference_pages.commands import commands_page
from reference_pages.configuration import configuration_page
from reference_pages.counters import counters_page
from reference_pages.errors import errors_page
from reference_pages.hooks import hooks_page
from reference_pages.source import UndocumentedError

PAGES: Mapping[str, Callable[[], str]] = {
    "commands.md": commands_page,
    "configuration.md": configuration_page,
    "counters.md": counters_page,
    "errors.md": errors_page,
    "hooks.md": hooks_page,
}


def main(argv: Sequence[str] | None = None) -> int:
    """0: done, or nothing is stale. 1: stale pages. 2: something has no description, and nothing was written."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--check", action="store_true", help="write nothing, name the pages that are stale")
    parser.add_argument("--folder", type=Path, default=Path(__file__).parent / "reference", help="default: docs/reference")
    args = parser.parse_args(argv)
    try:
        texts = {name: make() for name, make in PAGES.items()}
    except UndocumentedError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    stale = [name for name, text in texts.items() if _read(args.folder / name) != text]
    for name in stale:
        sys.stdout.write(f"{name} {'is stale: run `make docs`' if args.check else 'written'}\n")
        if not args.check:
            args.folder.mkdir(parents=True, exist_ok=True)
            (args.folder / name).write_text(texts[name], encoding="utf-8")
    return 1 if stale and args.check else 0


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.is_file() else None


if __name__ == "__main__":
    sys.exit(main())
