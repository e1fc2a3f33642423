"""Servers that tests start: they are ready when they are started, end with their test, and say why when they do not start."""

import os
import signal
import subprocess
import sys
import time

import pytest

from kvcache_conformance.server_process import (
    LOOPBACK,
    ServerNotReadyError,
    ServerProcess,
    accepts,
    free_port,
    installed_file,
    missing_server,
    started,
)

ECHO = """
import socket, sys
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print("listening", flush=True)
while True:
    connection, _ = listener.accept()
    connection.sendall(b"hello")
    connection.close()
"""


def echo(folder, port: int) -> ServerProcess:
    return ServerProcess([sys.executable, "-c", ECHO, str(port)], folder, lambda: accepts(port))


def alive(pid: int) -> bool:
    """Whether a process is there that is no zombie."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:  # noqa: PTH123 - no file of a folder
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_it_is_ready_when_it_is_started_and_gone_when_it_is_left(tmp_path):
    port = free_port()
    with echo(tmp_path / "server", port) as server:
        pid = server.pid
        assert accepts(port)
        assert "listening" in server.log
    assert not alive(pid)
    assert not accepts(port)
    server.end()


def test_it_is_ended_when_the_test_fails(tmp_path):
    server = echo(tmp_path, free_port())
    pids: list[int] = []

    def test() -> None:
        with server:
            pids.append(server.pid)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        test()
    assert not alive(pids[0])


def test_one_that_does_not_start_says_what_it_has_printed(tmp_path):
    server = ServerProcess([sys.executable, "-c", "print('no such option'); exit(3)"], tmp_path, lambda: False)
    with pytest.raises(ServerNotReadyError, match=r"ended with status 3(?s:.*)no such option"):
        server.start()


def test_a_port_that_was_taken_meanwhile_is_tried_anew(tmp_path):
    taken = free_port()
    ports = iter([taken, free_port()])
    with echo(tmp_path / "first", taken):
        # Only who has got the port prints that, so that another's answer is not taken for its own.
        def make() -> ServerProcess:
            port = next(ports)
            server = ServerProcess(
                [sys.executable, "-c", ECHO, str(port)], tmp_path / str(port), lambda: "listening" in server.log
            )
            return server

        with started(make) as second:
            assert second.folder != tmp_path / str(taken)


def test_it_is_paused_killed_and_started_again(tmp_path):
    port = free_port()
    with echo(tmp_path, port) as server:
        server.pause()
        with open(f"/proc/{server.pid}/stat", encoding="utf-8") as file:  # noqa: PTH123
            assert file.read().rpartition(")")[2].split()[0] == "T"
        server.resume()
        pid = server.pid
        server.kill()
        assert not alive(pid)
        server.start()
        assert server.pid != pid
        server.pause()
    assert not accepts(port)


def test_it_dies_with_a_test_process_that_is_killed(tmp_path):
    if not os.path.exists("/usr/bin/setpriv"):  # noqa: PTH110
        pytest.skip("the system has no setpriv")
    code = (
        "import sys, time; from pathlib import Path; from kvcache_conformance.server_process import ServerProcess, accepts\n"
        "folder, port = sys.argv[1:]\n"
        f"server = ServerProcess([sys.executable, '-c', {ECHO!r}, port], Path(folder), lambda: accepts(int(port)))\n"
        "server.start(); print(server.pid, flush=True); time.sleep(60)"
    )
    port = free_port()
    parent = subprocess.Popen([sys.executable, "-c", code, str(tmp_path), str(port)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.send_signal(signal.SIGKILL)
    parent.communicate()
    until = time.monotonic() + 30
    while alive(pid):
        assert time.monotonic() < until, "the server has outlived the test's process"


def test_a_missing_server_is_a_skip_here_and_a_failure_in_ci(monkeypatch):
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="there is none"):
        missing_server("there is none")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="there is none"):
        missing_server("there is none")


def test_files_of_wheels_are_found():
    assert installed_file("pytest", "METADATA") is not None
    assert installed_file("pytest", "no such file") is None
    assert installed_file("no-such-distribution", "METADATA") is None
    assert LOOPBACK == "127.0.0.1"
