"""RedisStorage: pages in servers, by the contract of HiCacheStorage. It sees bytes and never what is in them.

It tries nothing twice and has no deadline for a whole call: both belong to whoever calls. What one server of several does not
answer costs that server's pages and no others.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, final

from kvcache_core.contracts.storage import HiCacheStorage, NotAllStoredError, StoredPage, Value
from kvcache_storage_redis.errors import PagesError, ServerError, one_line
from kvcache_storage_redis.facts import ServerFacts
from kvcache_storage_redis.fleet import Fleet, Request
from kvcache_storage_redis.names import Names
from kvcache_storage_redis.scanning import stored_pages
from kvcache_storage_redis.server import Reply
from kvcache_storage_redis.wire import flat

_FIRST_GUESS: Final = 1 << 20
"""Bytes of a page, until one has been seen: how many are asked for in one pipeline depends on it."""


@final
class RedisStorage(HiCacheStorage):
    """One key a page. Thread safe, and usable in a forked child. `facts`: what the servers told when the store was opened."""

    def __init__(
        self,
        fleet: Fleet,
        names: Names,
        facts: Sequence[ServerFacts],
        *,
        largest: int,
        ttl_seconds: int | None = None,
        read_only: bool = False,
    ) -> None:
        """Owns `fleet`: `close` closes it. `largest`: bytes of a page above which it is not sent."""
        self.facts = tuple(facts)
        self._fleet = fleet
        self._names = names
        self._largest = largest
        self._ttl = None if ttl_seconds is None else b"%d" % ttl_seconds
        self._read_only = read_only
        self._page_bytes = _FIRST_GUESS
        self._closed = False

    def exists(self, keys: Sequence[str]) -> list[bool]:
        """Pages of a server that does not answer count as absent. Raises PagesError: no server answers."""
        return [reply == 1 for reply in self._read(b"EXISTS", (), keys, 0)]

    def get(self, keys: Sequence[str]) -> list[bytes | None]:
        """As `exists`. With a time to live, reading renews it."""
        if self._ttl is None or self._read_only:
            replies = self._read(b"GET", (), keys, self._page_bytes)
        else:
            replies = self._read(b"GETEX", (b"EX", self._ttl), keys, self._page_bytes)
        self._page_bytes = max((len(value) for value in replies if value), default=self._page_bytes)
        return replies

    def set(self, keys: Sequence[str], values: Sequence[Value]) -> None:
        """Raises NotAllStoredError: some were stored, or could be on other servers; PagesError: none could."""
        self._writable()
        # Of a key that comes twice the last value counts.
        batch = {key: flat(value) for key, value in zip(keys, values, strict=True)}
        names = {key: self._names.name(key) for key in batch}
        expiry = () if self._ttl is None else (b"EX", self._ttl)
        fitting = [key for key, value in batch.items() if len(value) <= self._largest]
        requests = [Request(names[key], (b"SET", names[key], batch[key], *expiry), len(batch[key])) for key in fitting]
        self._page_bytes = max((len(batch[key]) for key in fitting), default=0) or self._page_bytes
        replies = zip(fitting, self._fleet.ask(requests), strict=True)
        errors = {key: reply for key, reply in replies if isinstance(reply, Exception)}
        for key in batch.keys() - set(fitting):
            errors[key] = ValueError(f"{len(batch[key])} bytes are above the limit of {self._largest} (max_value_bytes)")
        if not errors:
            return
        text = _said(list(errors.values()), len(batch), "stored")
        if len(errors) < len(batch) or self._others_answer(errors.values()):
            raise NotAllStoredError(text, errors)
        raise PagesError(text)

    def delete(self, keys: Sequence[str]) -> None:
        """Raises PagesError: not all were removed, and why; those that could be are."""
        self._writable()
        names = [self._names.name(key) for key in dict.fromkeys(keys)]
        replies = self._fleet.ask([Request(name, (b"UNLINK", name)) for name in names])
        errors = [reply for reply in replies if isinstance(reply, Exception)]
        if errors:
            raise PagesError(_said(errors, len(names), "removed"))

    def scan(self) -> Iterator[StoredPage]:
        self._check()
        return stored_pages(self._fleet.servers(), self._names)

    def close(self) -> None:
        self._closed = True
        self._fleet.close()

    def _read(self, command: bytes, more: tuple[bytes, ...], keys: Sequence[str], nbytes: int) -> list[Reply]:
        """Replies, with None for pages of which there is none or that could not be had. Raises PagesError: no server answers."""
        self._check()
        names = [self._names.name(key) for key in keys]
        replies = self._fleet.ask([Request(name, (command, name, *more), nbytes) for name in names])
        errors = [reply for reply in replies if isinstance(reply, Exception)]
        if errors and len(errors) == len(replies) and not self._others_answer(errors):
            raise PagesError(_said(errors, len(replies), "answered for"))
        return [None if isinstance(reply, Exception) else reply for reply in replies]

    def _others_answer(self, errors: Iterable[Exception]) -> bool:
        """Whether all that is wrong is that some servers of several are gone: the store works, and has lost these pages."""
        return all(isinstance(error, ServerError) for error in errors) and self._fleet.some_answer()

    def _check(self) -> None:
        if self._closed:
            raise ValueError("this storage is closed")

    def _writable(self) -> None:
        self._check()
        if self._read_only:
            raise PermissionError("this storage was opened to be read only")


def _said(errors: Sequence[Exception], n: int, done: str) -> str:
    """How many, and what kept the first one from it."""
    first = errors[0]
    return f"{len(errors)} of {n} pages were not {done}: {str(first) if isinstance(first, ServerError) else one_line(first)}"
