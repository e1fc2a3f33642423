"""Where a command writes its results: a file that is known to be writable before the work begins, or standard output."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

from kvcache_core.errors import KVCacheError


@final
class Output:
    """`name`: as the user gave it; `-` is standard output. `flag`: how an error calls it."""

    def __init__(self, name: str, flag: str) -> None:
        """Raises KVCacheError when nothing can be written there: before minutes of work, not after them."""
        self._path = None if name == "-" else Path(name).expanduser()
        if self._path is None:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a", encoding="utf-8"):
                pass
        except OSError as error:
            raise KVCacheError(f"cannot write {flag} {self._path}: {error}") from error

    def write(self, text: str) -> None:
        """Replace what was there."""
        if self._path is None:
            sys.stdout.write(text)
        else:
            self._path.write_text(text, encoding="utf-8")

    def write_json(self, data: Mapping[str, Any]) -> None:
        """Replace what was there with `data`, indented."""
        self.write(json.dumps(data, ensure_ascii=False, indent=1) + "\n")
