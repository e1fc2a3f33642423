"""Commands as bytes for a socket, in the servers' protocol (RESP). A page goes out from where the caller has it, without a copy.

The client library would copy it twice. It knows no command.
"""

from collections.abc import Sequence
from typing import Final

from kvcache_core.contracts.storage import Value

Command = tuple[bytes | memoryview, ...]
"""A command's name and arguments."""

_JOINED: Final = 4096
"""Bytes below which a value is copied into the text around it: one more call into the system costs more."""


def flat(value: Value) -> bytes | memoryview:
    """A value as bytes that `len` counts."""
    if isinstance(value, bytes):
        return value
    view = memoryview(value)
    if not view.nbytes:
        return b""
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


def packed(commands: Sequence[Command]) -> list[bytes | memoryview]:
    """What to send for all of them, in order."""
    pieces: list[bytes | memoryview] = []
    text = bytearray()
    for command in commands:
        text += b"*%d\r\n" % len(command)
        for part in command:
            text += b"$%d\r\n" % len(part)
            if len(part) < _JOINED:
                text += part
            else:
                pieces += (bytes(text), part)
                text.clear()
            text += b"\r\n"
    if text:
        pieces.append(bytes(text))
    return pieces
