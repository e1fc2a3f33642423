"""ObjectStorage: pages as objects, by the contract of HiCacheStorage. It sees bytes and never what is in them; it raises where it
fails, and whoever calls it counts.
"""

import errno
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar, final

import obstore

from kvcache_core.contracts.storage import HiCacheStorage, StoredPage, Value
from kvcache_storage_object.client import check_process, in_this_process, listed
from kvcache_storage_object.failures import Failures
from kvcache_storage_object.fan_out import Answers, FanOut
from kvcache_storage_object.names import Names

if TYPE_CHECKING:
    from obstore.store import ObjectStore

log = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")

_CLOSE_SECONDS = 1.0
_BULK = 1000
"""Objects that one request of S3 may delete, and that one of its lists names."""


@final
class ObjectStorage(HiCacheStorage):
    """One object a page; a reader sees a whole one or none; the last writer wins. Several may be open on one bucket, anywhere.

    Every call ends within the time-out; of a page that has not come by then, or whose request failed, `get` and `exists` say that
    it is absent, unless nothing at all was found: then they raise. Thread safe; not to be used after a fork, nor opened there.
    """

    def __init__(
        self,
        client: "ObjectStore",
        names: Names,
        fan_out: FanOut,
        failures: Failures,
        *,
        bulk_delete: bool,
        atomic_create: bool | None,
        read_only: bool,
    ) -> None:
        """`fan_out` ends with it. `atomic_create`: see there."""
        self._held: ObjectStore | None = client
        self._names = names
        self._fan_out = fan_out
        self._failures = failures
        self._bulk_delete = bulk_delete
        self._atomic_create = atomic_create
        self._read_only = read_only
        self._closed = False
        self._complained = False

    @property
    def atomic_create(self) -> bool | None:
        """Whether the server was seen to refuse to create what is there already; some ignore that. None: it was not tried,
        because this one only reads. Pages do not need it: all who write one write the same."""
        return self._atomic_create

    def exists(self, keys: Sequence[str]) -> list[bool]:
        """Raises OSError where no page was found and not all are simply absent."""
        found = self._find(keys, self._is_there)
        return [key in found for key in keys]

    def get(self, keys: Sequence[str]) -> list[bytes | None]:
        """Raises OSError where no page could be read and not all are simply absent."""
        found = self._find(keys, self._read)
        return [found.get(key) for key in keys]

    def set(self, keys: Sequence[str], values: Sequence[Value]) -> None:
        """Raises OSError for the first page that could not be stored; the others of the batch are stored."""
        self._check(writes=True)
        # Of a key that comes twice the last value counts. What is late is still being sent when the caller has its buffers again.
        batch = {key: value if isinstance(value, bytes) else bytes(value) for key, value in zip(keys, values, strict=True)}
        names = {self._names.of(key): value for key, value in batch.items()}

        def store(name: str) -> None:
            obstore.put(self._client, name, names[name], use_multipart=False)

        self._expect_all(self._fan_out.run([*names], self._translating(store)), "stored")

    def delete(self, keys: Sequence[str]) -> None:
        """Raises OSError for the first page that could not be removed; the others are removed."""
        self._check(writes=True)
        names = list(dict.fromkeys(self._names.of(key) for key in keys))
        if not self._bulk_delete:
            answers = self._fan_out.run(names, self._translating(self._remove))
        else:
            groups = [names[start : start + _BULK] for start in range(0, len(names), _BULK)]
            answers = self._fan_out.run(groups, self._translating(lambda group: obstore.delete(self._client, group)))
        self._expect_all(answers, "removed")

    def scan(self) -> Iterator[StoredPage]:
        self._check()
        return self._pages()

    def close(self) -> None:
        """Ends its threads and connections. A request that hangs is not waited for."""
        self._closed = True
        if in_this_process():
            self._fan_out.close(_CLOSE_SECONDS)
        # Only now: a request that begins without a client would tell its caller of a server's failure. The library has no way to
        # close a client: its connections end with it.
        self._held = None

    @property
    def _client(self) -> "ObjectStore":
        """Raises ValueError after `close`."""
        if (client := self._held) is None:
            raise ValueError("this storage is closed")
        return client

    def _find(self, keys: Sequence[str], look: Callable[[str], R | None]) -> dict[str, R]:
        """What there is of these pages. Raises OSError."""
        self._check()
        unique = list(dict.fromkeys(keys))
        answers = self._fan_out.run([self._names.of(key) for key in unique], self._translating(look))
        found = {unique[number]: result for number, result in answers.results.items() if result is not None}
        if answers.errors:
            if not found:
                raise answers.first_error
            self._complain(answers.first_error)
        return found

    def _is_there(self, name: str) -> bool | None:
        try:
            obstore.head(self._client, name)
        except FileNotFoundError:
            return None
        return True

    def _read(self, name: str) -> bytes | None:
        try:
            return obstore.get(self._client, name).bytes().to_bytes()
        except FileNotFoundError:
            return None

    def _remove(self, name: str) -> None:
        with suppress(FileNotFoundError):  # Google's and Azure's answer for an absent object
            obstore.delete(self._client, name)

    def _pages(self) -> Iterator[StoredPage]:
        parts = listed(self._client, self._names.prefix, _BULK)
        while (chunk := self._translating(lambda _: next(parts, None))(None)) is not None:
            for meta in chunk:
                named = self._names.parse(meta["path"])
                if named is not None:
                    used = meta["last_modified"].timestamp()
                    yield StoredPage(named.key, named.model_id, named.page_size, meta["size"], used)

    def _translating(self, work: Callable[[T], R]) -> Callable[[T], R]:
        def translated(item: T) -> R:
            try:
                return work(item)
            except (KeyboardInterrupt, SystemExit, GeneratorExit):
                raise
            except BaseException as error:  # a panic inside the library is no Exception
                raise self._failures.translated(error) from None

        return translated

    def _expect_all(self, answers: Answers[None], verb: str) -> None:
        if answers.errors:
            error = answers.first_error
            error.add_note(f"{len(answers.errors)} of {len(answers.errors) + len(answers.results)} requests failed; not {verb}")
            raise error

    def _complain(self, error: Exception) -> None:
        if not self._complained:
            self._complained = True
            log.warning("pages that cannot be read count as absent (said once): %s", error)

    def _check(self, *, writes: bool = False) -> None:
        if self._closed:
            raise ValueError("this storage is closed")
        check_process()
        if writes and self._read_only:
            raise OSError(errno.EROFS, "this storage was opened to be read only")
