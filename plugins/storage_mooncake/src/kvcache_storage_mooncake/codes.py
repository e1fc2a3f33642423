"""What the library's numbers mean, and which of them are errors. Of its table only what was met is named."""

from typing import Final

NO_ROOM: Final = -200
BUFFER_TOO_SMALL: Final = -600
OVERTAKEN: Final = -601
"""Somebody else has begun to write the page meanwhile, and ours was dropped."""
NOT_READY: Final = -703
"""The page is being written."""
ABSENT: Final = -704
LEASED: Final = -706
"""Somebody has looked at the page seconds ago."""

TRY_AGAIN: Final = frozenset({NO_ROOM, OVERTAKEN, NOT_READY, ABSENT, LEASED})
"""What a page that is written may get while others write, read, remove or evict. It takes milliseconds."""
NOTHING_THERE: Final = frozenset({NOT_READY, ABSENT})
"""What a page that is read may get and that is no error."""

_MEANINGS: Final = {
    NO_ROOM: "the store has no room, or no memory at all: start holders, or give them more",
    BUFFER_TOO_SMALL: "the library refused the call's arguments",
    OVERTAKEN: "others write this page all the time",
    -800: "the transfer failed: the process that holds the page may be gone",
    -900: "the master cannot be reached",
    -901: "the master did not answer in time",
}


def error_of(code: int) -> OSError:
    """What a code below zero says."""
    text = f"{_MEANINGS.get(code, 'the store refused')} (code {code})"
    if code == -901:
        return TimeoutError(text)
    return ConnectionError(text) if code in (-800, -900) else OSError(text)
