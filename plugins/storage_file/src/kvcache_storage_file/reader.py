"""Looks pages up and reads them; it changes nothing but the time of their last use. It knows no books and no root."""

import logging
from collections.abc import Sequence
from typing import final

from kvcache_storage_file import page_file
from kvcache_storage_file.layout import Layout
from kvcache_storage_file.workers import Workers

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
        paths = [self._layout.place(key).path for key in keys]
        values: list[bytes | None] = [None] * len(paths)

        def read(number: int) -> None:
            values[number] = page_file.read(paths[number], renew=self._renew)

        errors = self._workers.each(len(paths), read)
        if errors:
            if all(value is None for value in values):
                raise errors[0]
            self._complain(errors[0])
        return values

    def _complain(self, error: Exception) -> None:
        if not self._complained:
            self._complained = True
            log.warning("a page cannot be read and counts as absent (said once): %s", error)
