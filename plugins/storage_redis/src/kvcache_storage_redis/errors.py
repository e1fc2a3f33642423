"""What goes wrong with a server, in one line without secrets, and what to do about it."""

import ssl
from collections.abc import Iterable
from typing import Final, NamedTuple

from redis import exceptions

from kvcache_core.errors import KVCacheError
from kvcache_storage_redis.url import MASK

_LONGEST: Final = 300


class Address(NamedTuple):
    """Where a server listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class ServerError(KVCacheError):
    """A server did not answer, or what it answered is no use for any page. `advice`: what a user may do.

    What to do: look at the server whose address it begins with; at the start the text says at which options, too.
    """

    def __init__(self, address: Address, reason: str, advice: str = "") -> None:
        super().__init__(f"{address}: {reason}")
        self.advice = advice


class PagesError(KVCacheError):
    """Pages of a call were not stored, removed or answered for; the text says how many, and why the first one was not.

    What to do: nothing for the cache's sake, which counts it and computes; look at the server that the text names.
    """


def one_line(error: BaseException, secrets: Iterable[str] = ()) -> str:
    """Kind and first line of an error from elsewhere, cut, and without `secrets`."""
    text = str(error)
    for secret in secrets:  # before anything is cut: a part of one is a secret, too
        text = text.replace(secret, MASK)
    line = (text.splitlines() or [""])[0][:_LONGEST]
    return f"{type(error).__name__}: {line}" if line else type(error).__name__


def advice_for(error: BaseException) -> str:
    """What to look at when a server cannot be used because of `error`; empty where nobody knows."""
    if isinstance(error, exceptions.AuthenticationError) or "AUTH" in str(error) or "username-password" in str(error):
        return "check 'username' and 'password' or 'password_file', or those in 'url'"
    if _caused_by(error, ssl.SSLError):
        return "check 'tls', 'tls_ca_file' and the other tls options, or rediss:// in 'url': one side may not speak TLS"
    if isinstance(error, exceptions.BusyLoadingError):
        return "it is still loading its data: start again when it has"
    if isinstance(error, exceptions.NoPermissionError):
        return (
            "its access control list has to allow the commands that the README names, for all keys that begin with 'key_prefix'"
        )
    if isinstance(error, exceptions.TimeoutError):
        return "it does not answer: check 'host' and 'port', or 'url', whether it speaks TLS, and whether it is overloaded"
    if isinstance(error, (exceptions.ConnectionError, OSError)):
        return "check 'host' and 'port', or 'url', whether a server is running there, and whether it speaks TLS"
    return ""


def _caused_by(error: BaseException | None, kind: type[BaseException]) -> bool:
    while error is not None:
        if isinstance(error, kind):
            return True
        error = error.__cause__ or error.__context__
    return False
