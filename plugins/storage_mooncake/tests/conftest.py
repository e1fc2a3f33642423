"""What the tests of MooncakeStorage share: a master and a holder of pages of their own, and stores with names of their own."""

import secrets
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from kvcache_conformance.mooncake_servers import MooncakeHolder, MooncakeMaster
from kvcache_conformance.server_process import started
from kvcache_core.contracts.storage import StorageScope
from kvcache_storage_mooncake import opening
from kvcache_storage_mooncake.config import MooncakeOptions
from kvcache_storage_mooncake.storage import MooncakeStorage

LONG = 60.0
SCOPE = StorageScope(model_id="model", page_size=16)


class Store:
    """A master, its holder, and what is opened on them. Names begin with a prefix of its own."""

    def __init__(self, master: MooncakeMaster, holder: MooncakeHolder, closing: ExitStack) -> None:
        self.master = master
        self.holder = holder
        self.prefix = f"{secrets.token_hex(8)}/"
        self._closing = closing

    def options(self, **changes) -> dict:
        return self.master.options() | {"key_prefix": self.prefix, "buffer_bytes": 2**24} | changes

    def open(self, scope: StorageScope = SCOPE, **changes) -> MooncakeStorage:
        storage = opening.make(MooncakeOptions.model_validate(self.options(**changes)), scope)
        assert isinstance(storage, MooncakeStorage)
        self._closing.callback(storage.close)
        return storage

    def remove(self, ending: str) -> None:
        """All pages of this store with such names (a regular expression), whoever looks at them."""
        storage = self.open()
        with storage._lane.turn(LONG) as turn:
            assert turn.call(lambda: storage._client._store.remove_by_regex(f"^{self.prefix}.*{ending}", True)) > 0


@contextmanager
def running(folder: Path, megabytes: int, flags: Sequence[str] = ()) -> Iterator[tuple[MooncakeMaster, MooncakeHolder]]:
    with ExitStack() as ending:
        master = ending.enter_context(started(lambda: MooncakeMaster(folder / secrets.token_hex(4), flags)))
        yield master, ending.enter_context(started(lambda: MooncakeHolder(folder / secrets.token_hex(4), master, megabytes)))


@pytest.fixture(scope="session")
def servers(tmp_path_factory) -> Iterator[tuple[MooncakeMaster, MooncakeHolder]]:
    """For all tests that leave them running."""
    with running(tmp_path_factory.mktemp("mooncake"), 512) as both:
        yield both


@pytest.fixture
def store(servers) -> Iterator[Store]:
    master, holder = servers
    with ExitStack() as closing:
        yield Store(master, holder, closing)


@pytest.fixture
def own_store(tmp_path) -> Iterator[Store]:
    """On servers that the test may stop and kill, and soon full."""
    with running(tmp_path, 64) as both, ExitStack() as closing:
        yield Store(*both, closing)


@pytest.fixture
def keeping_store(tmp_path) -> Iterator[Store]:
    """On servers of its own that keep what was looked at for as long as the test takes."""
    with running(tmp_path, 64, ["--default_kv_lease_ttl=10m"]) as both, ExitStack() as closing:
        yield Store(*both, closing)


@pytest.fixture
def quick_store(tmp_path) -> Iterator[Store]:
    """On servers of its own, with a master that soon notices who is gone."""
    with running(tmp_path, 64, ["--client_ttl=3"]) as both, ExitStack() as closing:
        yield Store(*both, closing)
