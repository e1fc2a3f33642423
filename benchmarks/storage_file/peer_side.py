"""LMCache's local disk backend as a side: it runs in the peer's environment, and takes its own time."""

import json
import subprocess
import tempfile
from pathlib import Path
from typing import final

from storage_file.sides import Side

SCRIPT = Path(__file__).parent / "peer_lmcache.py"


class PeerFailed(Exception):
    """The peer's process ended; its last lines say why."""


@final
class LMCache(Side):
    """Requests of `request` pages. `python`: an interpreter of an environment with LMCache."""

    def __init__(self, folder: Path, nbytes: int, pages: int, request: int, python: Path) -> None:
        super().__init__(folder, nbytes, pages)
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the side
        command = [str(python.absolute()), str(SCRIPT), *map(str, (folder, nbytes, pages, request))]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True, cwd=folder.parent
        )

    def write(self, first: int, n: int) -> float:
        return self._ask("write", first, n)

    def read(self, first: int, n: int) -> float:
        return self._ask("read", first, n)

    def empty(self) -> None:
        self._ask("empty")

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._log.close()

    def _ask(self, *order: str | int) -> float:
        """Raises PeerFailed when no answer comes."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        print(json.dumps(order), file=stdin, flush=True)
        answer = stdout.readline()
        if not answer:
            self._process.wait()
            self._log.seek(0)
            raise PeerFailed(f"LMCache, {order[0]}: exit status {self._process.returncode}\n{self._log.read()[-2000:]}")
        return float(answer)
