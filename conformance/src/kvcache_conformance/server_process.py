"""A server that a test starts, stops and kills: a child on loopback that ends with the test. It knows no protocol.

Tests that need a server which cannot be installed everywhere are skipped with the reason; where the environment variable CI is
set they fail, because nobody would notice there that they are not run.
"""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NoReturn, Self, TypeVar, final

import pytest

LOOPBACK: Final = "127.0.0.1"

_READY_SECONDS: Final = 30.0
_END_SECONDS: Final = 10.0
_LOOK_AGAIN: Final = 0.01
_TRIES: Final = 3
_NOTHING: Final = MappingProxyType[str, str]({})

Started = TypeVar("Started", bound="ServerProcess")


class ServerNotReadyError(Exception):
    """A server ended at its start, or did not get ready in time. The text has the end of its log."""


def free_port() -> int:
    """A port on loopback that nobody listens on now."""
    with socket.socket() as found:
        found.bind((LOOPBACK, 0))
        return found.getsockname()[1]


def accepts(port: int) -> bool:
    """Whether somebody listens on a port of loopback."""
    with socket.socket() as tried:
        tried.settimeout(1.0)
        return tried.connect_ex((LOOPBACK, port)) == 0


def missing_server(reason: str) -> NoReturn:
    """The test needs a server that is not here: it is skipped, or fails in CI."""
    if os.environ.get("CI"):
        pytest.fail(f"CI has to bring what every test needs: {reason}")
    pytest.skip(reason)


def started(make: Callable[[], Started]) -> Started:
    """A server that `make` makes, ready to be used. It is made anew when it does not start: another process may have taken a port
    since it was found free. Raises ServerNotReadyError."""
    for _ in range(_TRIES - 1):
        server = make()
        try:
            server.start()
        except ServerNotReadyError:
            continue
        return server
    server = make()
    server.start()
    return server


class ServerProcess:
    """One process at a time, in a folder of its own. Used as a context it is started, and ended whatever happens.

    Where the system can do it (setpriv on Linux), the process is killed with the test's even if that is killed.
    """

    def __init__(
        self,
        command: Sequence[str],
        folder: Path,
        ready: Callable[[], bool],
        environment: Mapping[str, str] = _NOTHING,
    ) -> None:
        """`ready`: asked again and again until it is True; it may raise OSError till then. `environment`: added to ours."""
        self.folder = folder
        self._command: tuple[str, ...] = tuple(command)
        self._ready = ready
        self._environment = dict(environment)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    @final
    def pid(self) -> int:
        """Of the process that runs now."""
        assert self._process is not None, "it is not running"
        return self._process.pid

    @property
    @final
    def log(self) -> str:
        """All that it has printed, over all its starts."""
        file = self._log_file()
        return file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""

    @final
    def start(self) -> None:
        """Raises ServerNotReadyError, and then it is ended."""
        assert self._process is None, "it is running already"
        self.folder.mkdir(parents=True, exist_ok=True)
        with self._log_file().open("ab") as log:
            self._process = subprocess.Popen(
                [*_dying_with_parent(), *self._command],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | self._environment,
            )
        until = time.monotonic() + _READY_SECONDS
        while not self._is_ready():
            status = self._process.poll()
            if status is not None or time.monotonic() > until:
                self.end()
                why = f"did not get ready within {_READY_SECONDS:.0f} s" if status is None else f"ended with status {status}"
                tail = "\n".join(self.log.splitlines()[-30:])
                raise ServerNotReadyError(f"{self._command[0]} {why}; the end of its log:\n{tail}")
            time.sleep(_LOOK_AGAIN)

    @final
    def pause(self) -> None:
        """It keeps its port and its connections, and answers nothing (SIGSTOP). Returns when it has stopped."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitpid(self.pid, os.WUNTRACED)

    @final
    def resume(self) -> None:
        """After `pause`."""
        os.kill(self.pid, signal.SIGCONT)

    @final
    def kill(self) -> None:
        """It ends at once and saves nothing (SIGKILL)."""
        assert self._process is not None, "it is not running"
        self._process.kill()
        self._process.wait(_END_SECONDS)
        self._process = None

    @final
    def end(self) -> None:
        """It ends as it likes to; is killed when it takes too long. Idempotent."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.terminate()
        try:
            process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(_END_SECONDS)

    @final
    def __enter__(self) -> Self:
        if self._process is None:
            self.start()
        return self

    @final
    def __exit__(self, *_: object) -> None:
        self.end()

    def _is_ready(self) -> bool:
        try:
            return self._ready()
        except OSError:
            return False

    def _log_file(self) -> Path:
        return self.folder / "server.log"


def _dying_with_parent() -> list[str]:
    setpriv = shutil.which("setpriv")
    return [] if setpriv is None else [setpriv, "--pdeathsig", "KILL", "--"]


def installed_file(distribution: str, name: str) -> Path | None:
    """A file of this name in an installed distribution; None where it has none or is not installed."""
    from importlib.metadata import PackageNotFoundError, files

    try:
        found: Any = files(distribution) or []
    except PackageNotFoundError:
        return None
    return next((Path(file.locate()) for file in found if file.name == name), None)
