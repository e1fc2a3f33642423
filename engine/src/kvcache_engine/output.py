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
        self._flag = flag
        self._path = None if name == "-" else Path(name).expanduser()
        if self._path is None:
            return
        new = not self._path.exists()
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a", encoding="utf-8"):
                pass
            if new:
                # An empty file would look like a result if the work never ended.
                self._path.unlink()
        except OSError as error:
            raise self._refused(error) from error

    def write(self, text: str) -> None:
        """Replace what was there. Raises KVCacheError when that fails, for instance on a full disk."""
        try:
            if self._path is None:
                sys.stdout.write(text)
                sys.stdout.flush()
            else:
                self._path.write_text(text, encoding="utf-8")
        except BrokenPipeError:
            raise  # whoever read our output has gone: no error of this command
        except OSError as error:
            raise self._refused(error) from error

    def write_json(self, data: Mapping[str, Any]) -> None:
        """Replace what was there with `data`, indented."""
        self.write(json.dumps(data, ensure_ascii=False, indent=1) + "\n")

    def _refused(self, error: OSError) -> KVCacheError:
        return KVCacheError(f"cannot write {self._flag} {self._path or '-'}: {error.strerror}")
