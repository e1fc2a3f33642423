"""Opening a store: first the master, without which the library hangs; then the client, with a deadline."""

from typing import Final

from kvcache_core.contracts.storage import HiCacheStorage, StorageScope
from kvcache_core.errors import StorageError
from kvcache_storage_mooncake.client import set_up
from kvcache_storage_mooncake.config import MooncakeOptions
from kvcache_storage_mooncake.greeting import greet
from kvcache_storage_mooncake.lane import Lane
from kvcache_storage_mooncake.storage import MooncakeStorage, check_process

_PATH: Final = ("hicache", "storage")


def make(options: MooncakeOptions, scope: StorageScope) -> HiCacheStorage:
    """The factory named by the descriptor. Raises StorageError where the store cannot be used."""
    lane = Lane(options.master)
    buffer_bytes, segment_bytes = options.buffer_bytes or 0, options.segment_bytes or 0
    try:
        check_process()
        own_address = greet(options.address, options.connect_timeout)
        hostname = options.hostname or own_address
        with lane.turn(options.timeout) as turn:
            client = turn.call(lambda: set_up(hostname, options.metadata, segment_bytes, buffer_bytes, options.master))
            healthy = turn.call(client.healthy)
    except ImportError as error:
        lane.end()
        raise StorageError(
            f"storage 'mooncake' cannot load its library: {error}; on Debian it needs libibverbs1 librdmacm1 libnuma1 liburing2",
            path=_PATH,
        ) from None
    except (OSError, RuntimeError) as error:
        lane.end()
        raise StorageError(
            f"storage 'mooncake' cannot use the master at {options.master}: {error}; check 'master' and 'hostname'", path=_PATH
        ) from None
    if not healthy:
        raise StorageError(f"storage 'mooncake': the master at {options.master} does not know this client", path=_PATH)
    return MooncakeStorage(client, lane, options.key_prefix, options.timeout, read_only=scope.read_only)
