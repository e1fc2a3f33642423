"""Every page of a store, node by node (`SCAN`), for `kvcache storage`. It knows no scope."""

import time
from collections.abc import Iterator, Sequence
from typing import Final

from redis.exceptions import NoPermissionError

from kvcache_core.contracts.storage import StoredPage
from kvcache_storage_redis.errors import ServerError, advice_for, one_line
from kvcache_storage_redis.names import Names
from kvcache_storage_redis.server import Server

_STEP: Final = 512
"""Keys that a server looks at in one go: it serves nobody else meanwhile."""


def stored_pages(servers: Sequence[Server], names: Names) -> Iterator[StoredPage]:
    """Each page once, whatever a server does to its table meanwhile. Raises ServerError."""
    seen: set[int] = set()
    for server in servers:
        cursor = b"0"
        while True:
            (reply,) = server.ask([(b"SCAN", cursor, b"MATCH", names.pattern, b"COUNT", b"%d" % _STEP)])
            if isinstance(reply, Exception):
                raise _refused(server, reply)
            cursor, found = reply
            # Servers name keys twice while their table grows. Hashes are kept, because a store may have millions of pages.
            new = [name for name in dict.fromkeys(found) if hash(name) not in seen]
            seen.update(map(hash, new))
            yield from _described(server, names, new)
            if cursor == b"0":
                break


def _described(server: Server, names: Names, found: Sequence[bytes]) -> Iterator[StoredPage]:
    pages = [(name, page) for name in found if (page := names.parse(name)) is not None]
    # Idle times first: to some servers asking for the length counts as use.
    asked = [command for name, _ in pages for command in ((b"OBJECT", b"IDLETIME", name), (b"STRLEN", name), (b"EXISTS", name))]
    replies = server.ask(asked) if asked else []
    now = float(int(time.time()))  # idle times are whole seconds: a fraction would change from one scan to the next
    for number, (_, (key, model_id, page_size)) in enumerate(pages):
        idle, length, exists = replies[3 * number : 3 * number + 3]
        for reply in (idle, length, exists):
            if isinstance(reply, NoPermissionError):  # no page would be listed, or none would be old
                raise _refused(server, reply)
        if exists != 1 or isinstance(length, Exception):
            continue  # gone meanwhile, or somebody else's list under a name like ours
        # A server that counts uses (allkeys-lfu) keeps no time: its pages are called new, so that no age removes them.
        used = now - idle if isinstance(idle, int) else now
        yield StoredPage(key, model_id, page_size, length, used)


def _refused(server: Server, reply: Exception) -> ServerError:
    return ServerError(server.address, one_line(reply), advice_for(reply))
