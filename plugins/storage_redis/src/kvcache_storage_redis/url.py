"""A server's URL, redis://user:password@host:port/db, and what may be shown of it."""

import re
from typing import Any, Final, NamedTuple, final
from urllib.parse import SplitResult, quote, unquote, urlsplit

from pydantic import Secret

MASK: Final = "*" * 10
"""What stands in place of a secret wherever a configuration is shown."""

_SHAPE: Final = "must be like redis://host:6379, redis://user:password@host:6379/0, or rediss:// for TLS"
_ESCAPES: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")


class UrlParts(NamedTuple):
    """What a URL says; None where it says nothing. User and password are decoded."""

    tls: bool
    host: str
    port: int | None
    db: int | None
    username: str | None
    password: str | None


def parse_url(text: str) -> UrlParts:
    """Raises ValueError, whose text has nothing of the URL in it: parts of a password may stand anywhere in a wrong one."""
    try:
        found = urlsplit(text)
        port = found.port
    except ValueError:
        raise ValueError(f"{_SHAPE}; characters such as / # ? @ : in a password are written as %2F %23 %3F %40 %3A") from None
    db = found.path.removeprefix("/")
    if found.scheme not in ("redis", "rediss") or not found.hostname or (db and not db.isdecimal()):
        raise ValueError(f"{_SHAPE}; characters such as / # ? @ : in a password are written as %2F %23 %3F %40 %3A")
    if found.query or found.fragment:
        raise ValueError(
            "may have no '?' and no '#': options are fields beside it, and in a password they are written as %3F and %23"
        )
    username, password = _decoded(found.username), _decoded(found.password)
    return UrlParts(found.scheme == "rediss", found.hostname, port, int(db) if db else None, username, password)


def shown_url(text: str) -> str:
    """The URL with stars for its password; nothing of one that is none."""
    try:
        parse_url(text)
    except ValueError:
        return MASK
    found: SplitResult = urlsplit(text)
    if found.password is None:
        return text
    _, _, place = found.netloc.rpartition("@")
    user = "" if found.username is None else found.username
    return found._replace(netloc=f"{user}:{MASK}@{place}").geturl()


def _decoded(text: str | None) -> str | None:
    """None for what is absent or empty: redis://:password@host has no user."""
    if text is not None and _ESCAPES.search(text):
        raise ValueError("has a '%' that stands for no character: in a user's name or password it is written as %25")
    return unquote(text) if text else None


@final
class ServerUrl(Secret[str]):
    """A URL that is shown without its password."""

    def _display(self) -> Any:
        return shown_url(self.get_secret_value())


def is_mask(text: str) -> bool:
    """Whether this is what somebody was shown in place of a secret."""
    return MASK in text or quote(MASK, safe="") in text
