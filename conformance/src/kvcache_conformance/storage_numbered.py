"""Pages that are functions of their numbers, and processes that store them: what is read later proves itself. Neither pytest nor
jax is imported, so that a process of these starts quickly.
"""

import hashlib
from collections.abc import Iterable, Sequence

from kvcache_conformance.storage_processes import StorageOpener
from kvcache_core.contracts.storage import HiCacheStorage


def numbered_key(number: int) -> str:
    """The key of a page."""
    return hashlib.sha256(f"page {number}".encode()).hexdigest()


def page_of(key: str, nbytes: int) -> bytes:
    """The page of a key: at least `nbytes`, and a little more that depends on the key, so that lengths differ."""
    wanted = nbytes + int(key[:2], 16)
    return (bytes.fromhex(key) * (wanted // 32 + 1))[:wanted]


def largest_page(nbytes: int) -> int:
    """The most bytes that `page_of` gives."""
    return nbytes + 255


def wrong_pages(storage: HiCacheStorage, keys: Sequence[str], nbytes: int) -> list[str]:
    """Keys under which something else is stored than their page; nothing is not wrong."""
    return [key for key, value in zip(keys, storage.get(keys), strict=True) if value not in (None, page_of(key, nbytes))]


def store_numbered(storage: HiCacheStorage, numbers: Iterable[int], nbytes: int) -> None:
    """Set pages one after another."""
    for key in map(numbered_key, numbers):
        storage.set([key], [page_of(key, nbytes)])


def expect_stored(storage: HiCacheStorage, numbers: Iterable[int], nbytes: int) -> None:
    """Set pages one after another. Raises AssertionError where the store does not take one."""
    try:
        store_numbered(storage, numbers, nbytes)
    except OSError as error:
        raise AssertionError(f"a page was not stored: {error}") from error


def numbers_there(storage: HiCacheStorage, numbers: Iterable[int], nbytes: int) -> list[int]:
    """Those of the pages that are there. Raises AssertionError where one is wrong."""
    wanted = list(numbers)
    keys = [numbered_key(number) for number in wanted]
    found = storage.get(keys)
    for key, value in zip(keys, found, strict=True):
        assert value is None or value == page_of(key, nbytes), f"wrong bytes under {key}"
    return [number for number, value in zip(wanted, found, strict=True) if value is not None]


def fill(opener: StorageOpener, numbers: Iterable[int], nbytes: int, batch: int = 4) -> list[str]:
    """Open, set the pages of `numbers` by batches, read each batch and some older pages again, close. Gives the wrong ones."""
    storage = opener.open()
    wrong: list[str] = []
    keys = [numbered_key(number) for number in numbers]
    for start in range(0, len(keys), batch):
        group = keys[start : start + batch]
        storage.set(group, [page_of(key, nbytes) for key in group])
        wrong += wrong_pages(storage, [*group, *keys[start // 2 :][:2]], nbytes)
    storage.close()
    return wrong
