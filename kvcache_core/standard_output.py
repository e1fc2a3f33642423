"""What is done when standard output cannot be written to: the reader has gone, the disk is full, or its encoding
lacks a character. Knows no command."""

import errno
import io
import os
import sys
from typing import Any, cast

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Errors of a file system that takes no more; other OSErrors are not about the output and keep their traceback."""


def give_up_output(error: OSError) -> int:
    """Say why, unless the reader has gone as in `kvcache ... | head`; returns the exit status."""
    # Else the interpreter would try the same at its exit, and complain.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):
        return 1
    sys.stderr.write(f"kvcache: error: the output cannot be written: {error.strerror}; make room, or write it elsewhere\n")
    return 2


def flush_output() -> None:
    """Write what is still buffered, so that an error comes while it can be handled. Raises OSError."""
    if sys.stdout is not None:  # closed by whoever started us
        sys.stdout.flush()


def holds_unicode() -> bool:
    """Whether any text can be printed as it is; else data has to be escaped as its own format does it."""
    return sys.stdout is not None and (sys.stdout.encoding or "").lower().startswith("utf")


def escape_what_cannot_be_encoded() -> None:
    """What the terminal's encoding lacks is shown as an escape from now on, as standard error does, and raises nothing."""
    output = cast(object, sys.stdout)
    if isinstance(output, io.TextIOWrapper):
        cast("io.TextIOWrapper[Any]", output).reconfigure(errors="backslashreplace")
