"""What a client library says of a failure, as an error of our own: short, typed, and without what must not be shown.

The library's texts have many lines and repeat requests, and it tells few kinds of failures apart: of a list, a forbidden one and
a network that is gone are the same to it. So the kind is read from its text. None of its errors leaves this package, not as a
cause either: logs print causes.
"""

import re
from collections.abc import Sequence
from typing import Final, final

from obstore.exceptions import PermissionDeniedError, UnauthenticatedError

from kvcache_core.errors import KVCacheError

_LONGEST: Final = 300
_STATUS = re.compile(r"status code: (\d{3})")
_XML = re.compile(r"<Code>([^<]{1,100})</Code>(?:\s*<Message>([^<]{1,200})</Message>)?")
_KIND = re.compile(r"\bkind: (Timeout|Connect)\b")
_REASON = re.compile(r'message: "([^"]{1,200})"')
_QUERY = re.compile(r"\?[^\s\"')>,]+")  # a shared access signature stands there


@final
class Failures:
    """`secrets`: values that are taken out wherever they stand."""

    def __init__(self, secrets: Sequence[str]) -> None:
        self._secrets = tuple(secrets)

    def translated(self, error: BaseException) -> Exception:
        """Gives PermissionError where the server refused, FileNotFoundError, TimeoutError, ConnectionError, or another OSError.
        A KVCacheError is ours and stays. Others keep no more than their text, for the library may be their author as well."""
        if isinstance(error, KVCacheError):
            return error
        whole = str(error)
        status, kind = _STATUS.search(whole), _KIND.search(whole)
        text = self.text(whole)
        if isinstance(error, (PermissionDeniedError, UnauthenticatedError)) or (status and status[1] in ("401", "403")):
            return PermissionError(text)
        if isinstance(error, FileNotFoundError) or (status and status[1] == "404"):
            return FileNotFoundError(text)
        if kind is None:
            return OSError(text)
        if kind[1] == "Timeout":
            return TimeoutError("the server did not answer in time")
        reason = _REASON.search(whole)
        return ConnectionError("cannot connect" + (f": {reason[1]}" if reason else ""))

    def text(self, whole: str) -> str:
        """What is worth showing of it."""
        for secret in self._secrets:
            whole = whole.replace(secret, "***")
        said = _XML.search(whole)
        if said is not None:
            return f"{said[1]}: {said[2]}" if said[2] else said[1]
        line = _QUERY.sub("?...", whole.strip().partition("\n")[0])
        return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}..."
