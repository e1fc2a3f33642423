"""The storage of a configuration, opened for a command. Backend errors become errors of ours, with the backend's name."""

import argparse
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final, TypeVar, final

from kvcache_core.config.flags import config_from_args
from kvcache_core.config.load import LoadedConfig
from kvcache_core.config.slot import StorageSlot
from kvcache_core.contracts.storage import HiCacheStorage, StorageScope, StoredPage
from kvcache_core.errors import KVCacheError, StorageError
from kvcache_core.registry.default import default_registry
from kvcache_core.registry.loading import describe_exception, load_target
from kvcache_unified_hicache.storage.deadlines import close_within, within

T = TypeVar("T")

PATH: Final = ("hicache", "storage")

MODEL_ID: Final = "kvcache-storage-command"
"""What these commands open a storage for where no model is meant. No page is left under it."""


@final
class ConfiguredStorage:
    """What `hicache.storage` names. Nothing is opened yet."""

    def __init__(self, loaded: LoadedConfig, slot: StorageSlot, timeout: float) -> None:
        offer = default_registry().storage(slot.kind)
        self.kind = slot.kind
        self.timeout = timeout
        self.own_scope = StorageScope(MODEL_ID, loaded.config.page_size)
        self._loaded = loaded
        # A command removes what it says: opening with a limit would remove the oldest pages as well.
        limited = "capacity" in offer.descriptor.capabilities
        self._options = slot.options.model_copy(update={"max_bytes": None}) if limited else slot.options
        self._can_scan = "scan" in offer.descriptor.capabilities
        self._factory = load_target(offer.descriptor.factory, offer.source)

    @contextmanager
    def opened(self, scope: StorageScope) -> Generator[HiCacheStorage, None, None]:
        """The backend for pages of `scope`, closed at the end. Raises StorageError when it cannot be opened."""
        backend: HiCacheStorage = self.guarded(
            "cannot be opened", lambda: within(self.timeout, lambda: self._factory(self._options, scope))
        )
        try:
            yield backend
        finally:
            close_within(self.timeout, backend)

    def pages(self) -> Iterator[StoredPage]:
        """Every page of the whole store, which is left as it is.

        Raises StorageError: the backend cannot list its pages, finds no store, or fails on the way.
        """
        if not self._can_scan:
            raise self.located(StorageError(f"the storage backend '{self.kind}' cannot list its pages", path=PATH))
        with self.opened(replace(self.own_scope, read_only=True)) as backend:
            pages = self.guarded("cannot list its pages", backend.scan)
            while (page := self.guarded("cannot list its pages", lambda: next(pages, None))) is not None:
                yield page

    def guarded(self, what: str, call: Callable[[], T]) -> T:
        """The result of a call into the backend. Raises StorageError for whatever it raises."""
        try:
            return call()
        except KVCacheError as error:
            raise self.located(error) from error
        except Exception as error:
            text = f"the storage backend '{self.kind}' {what}: {describe_exception(error)}"
            raise self.located(StorageError(text, path=PATH)) from error

    def located(self, error: KVCacheError) -> KVCacheError:
        """The error with the place in the file that names the storage."""
        return self._loaded.located(error)


def configured_storage(args: argparse.Namespace) -> ConfiguredStorage:
    """The storage of the file and flags in `args`.

    Raises:
        InvalidConfigError: as every command that reads a configuration.
        StorageError: there is no storage in it.
        PluginError: the backend's factory cannot be imported.
    """
    loaded = config_from_args(args, args.file)
    hicache = loaded.config.hicache
    if hicache is None or hicache.storage is None:
        subject = args.file or "the command line"
        raise StorageError(f"{subject} has no storage; name one: `hicache: {{storage: file}}` or --hicache-storage file")
    return ConfiguredStorage(loaded, hicache.storage, hicache.storage_timeout)
