"""Looks pages up and reads them; it changes nothing but the time of their last use. It knows no books and no root."""

import logging
import time
from collections.abc import Callable, Sequence
from typing import TypeVar, final

from kvcache_storage_file import page_file
from kvcache_storage_file.layout import Layout
from kvcache_storage_file.workers import Workers

T = TypeVar("T")

log = logging.getLogger(__name__)


@final
class Reader:
    """Thread safe. `renew`: reading a page counts as use."""

    def __init__(self, layout: Layout, workers: Workers, *, renew: bool) -> None:
        self._layout = layout
        self._workers = workers
        self._renew = renew
        self._complained = False

    def exists(self, keys: Sequence[str]) -> list[bool]:
        """Raises OSError where that cannot be told."""
        return [page_file.is_file(self._layout.place(key).path) for key in keys]

    def get(self, keys: Sequence[str]) -> list[bytes | None]:
        """Raises OSError where no page could be read and not all are simply absent. A single bad file among good ones is absent:
        the next write of its key replaces it.
        """
        return self._each(keys, lambda path, _, used: page_file.read(path, used))

    def get_into(self, keys: Sequence[str], buffers: Sequence[Sequence[memoryview]]) -> list[int | None]:
        """The lengths of the pages, which are read to their buffers. Raises as `get` does."""
        return self._each(keys, lambda path, number, used: page_file.read_into(path, buffers[number], used))

    def _each(self, keys: Sequence[str], read: Callable[[str, int, int | None], T | None]) -> list[T | None]:
        # As in Writer: the beginning of a prefix counts as used after its end.
        now = time.time_ns()
        paths = [self._layout.place(key).path for key in keys]
        answers: list[T | None] = [None] * len(paths)

        def answer(number: int) -> None:
            answers[number] = read(paths[number], number, now - number if self._renew else None)

        errors = self._workers.each(len(paths), answer)
        if errors:
            if all(answer is None for answer in answers):
                raise errors[0]
            self._complain(errors[0])
        return answers

    def _complain(self, error: Exception) -> None:
        if not self._complained:
            self._complained = True
            log.warning("a page cannot be read and counts as absent (said once): %s", error)
