"""What `Interrupt` makes of signals, wherever in Python or in C they find the main thread: real ones, in a process of its own."""

import os
import pty
import signal
import subprocess
import sys
from time import monotonic

import pytest

DESTRUCTOR = """
class Busy:
    def __del__(self):
        print("ready", flush=True)
        while True:
            time.sleep(0.01)

Busy()
"""
C = """
print("ready", flush=True)
hashlib.pbkdf2_hmac("sha256", b"what", b"ever", (1 << 31) - 1)  # no Python for half an hour, as in a compiler
"""
SETTING = """
import hashlib, os, signal, sys, time
from kvcache_engine.interrupt import Interrupt
"""


def started(code: str) -> "subprocess.Popen[str]":
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", SETTING + code], stdin=pipe, stdout=pipe, stderr=pipe, text=True)


@pytest.mark.parametrize("busy", [DESTRUCTOR, C], ids=["destructor", "C"])
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_second_signal_ends_the_process_at_once(busy, number, status):
    code = "with Interrupt():\n" + "\n".join(f"    {line}" for line in busy.splitlines()) + "\nprint('went on')"
    with started(code) as process:
        assert process.stdout is not None and process.stderr is not None
        try:
            assert process.stdout.readline() == "ready\n"
            process.send_signal(signal.SIGINT)
            said = iter(process.stderr.readline, "")
            assert next(line for line in said if line.strip()) == "stopping after what is under way; once more ends at once\n"
            process.send_signal(number)
            stdout, stderr = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == status
    assert (stdout, stderr) == ("", "")


def test_the_first_signal_asks_and_what_comes_with_it_is_the_same_wish():
    code = """
with Interrupt() as interrupt:
    interrupt.check()
    for _ in range(2):
        os.kill(os.getpid(), signal.SIGTERM)
    print(interrupt.requested, interrupt.status, flush=True)
    sys.stdin.read()
print(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, signal.set_wakeup_fd(-1), flush=True)
"""
    with started(code) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == "True 143\n"
        assert process.stderr.readline() == "\n"
        assert process.stderr.readline().startswith("stopping after what is under way")
        stdout, stderr = process.communicate(timeout=30)
    assert (process.returncode, stdout, stderr) == (0, "True -1\n", "")


def test_a_reader_that_has_gone_does_not_keep_the_second_signal_away():
    code = """
with Interrupt():
    print("ready", flush=True)
    while True:
        time.sleep(0.01)
"""
    with started(code) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stderr.close()
        assert process.stdout.readline() == "ready\n"
        until = monotonic() + 30
        while process.poll() is None and monotonic() < until:  # nothing says when the first one was seen
            process.send_signal(signal.SIGINT)
        process.kill()
    assert process.returncode == 130


def read_until(terminal: int, text: bytes) -> None:
    """Raises OSError when the terminal ends without it."""
    shown = b""
    while text not in shown:
        part = os.read(terminal, 1024)
        if not part:
            raise OSError(f"no {text!r} in {shown!r}")
        shown += part


def test_a_terminal_gets_its_cursor_back():
    """A bar hides it, and after the second signal nobody is left who could end the bar."""
    code = "with Interrupt():\n    print('ready', flush=True)\n    while True: time.sleep(0.01)"
    ours, its = pty.openpty()
    words = [sys.executable, "-c", SETTING + code]
    environment = {**os.environ, "TERM": "xterm"}
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=its, text=True, env=environment) as process:
        os.close(its)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        read_until(ours, b"ends at once")
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 130
    read_until(ours, b"\x1b[?25h")
    os.close(ours)
