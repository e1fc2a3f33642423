"""Lets time pass for a backend in this process, without waiting for it. It knows no backend."""

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from unittest.mock import patch


@contextmanager
def fast_clock() -> Generator[Callable[[float], None]]:
    """Gives a function that lets seconds pass, for whoever asks `time.time` or `time.time_ns`; deadlines have another clock.

    A backend may write down a read once a minute only. One that asks other clocks sees hardly any time pass, and the order of
    what happens is the same to it.
    """
    passed = 0.0
    real, real_ns = time.time, time.time_ns

    def let_pass(seconds: float) -> None:
        nonlocal passed
        passed += seconds

    with (
        patch("time.time", lambda: real() + passed),
        patch("time.time_ns", lambda: real_ns() + int(passed * 1e9)),
    ):
        yield let_pass
