"""The servers of one store, asked by page. It knows which server has a key, no values and no meaning of a reply."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, final

from kvcache_storage_redis.errors import ServerError
from kvcache_storage_redis.server import Reply, Server
from kvcache_storage_redis.wire import Command

COMMANDS: Final = 1024
"""In one pipeline, however small they are."""

Clock = Callable[[], float]


class Request(NamedTuple):
    """A command about one key. `nbytes`: of the page that goes with it, in either direction; a guess where nobody knows."""

    key: bytes
    command: Command
    nbytes: int = 0


class Fleet(ABC):
    """Thread safe."""

    @abstractmethod
    def ask(self, requests: Sequence[Request]) -> list[Reply]:
        """One reply for each, in order. Raises nothing: a ServerError stands for the reply of a server that gave none, and a
        ResponseError for a refusal."""

    @abstractmethod
    def some_answer(self) -> bool:
        """Whether some servers answer when others do not, as far as is known now."""

    @abstractmethod
    def servers(self) -> Sequence[Server]:
        """All that have pages, as far as is known now."""

    @abstractmethod
    def close(self) -> None:
        """Idempotent."""


@final
class SingleServer(Fleet):
    """A store on one server. What to do about one that fails is its caller's affair: nothing is left that could answer."""

    def __init__(self, server: Server, pipeline_bytes: int) -> None:
        self._server = server
        self._pipeline_bytes = pipeline_bytes

    def ask(self, requests: Sequence[Request]) -> list[Reply]:
        return ask_one(self._server, requests, self._pipeline_bytes)

    def some_answer(self) -> bool:
        return False

    def servers(self) -> Sequence[Server]:
        return (self._server,)

    def close(self) -> None:
        self._server.close()


def ask_one(server: Server, requests: Sequence[Request], pipeline_bytes: int) -> list[Reply]:
    """All replies of one server, by pipelines one after the other. After one that failed no other is tried: each would wait."""
    replies: list[Reply] = []
    for some in pipelines(requests, pipeline_bytes):
        try:
            replies += server.ask([request.command for request in some])
        except ServerError as error:
            return replies + [error] * (len(requests) - len(replies))
    return replies


def pipelines(requests: Sequence[Request], pipeline_bytes: int) -> Iterator[Sequence[Request]]:
    """The requests in order, cut so that pages of at most `pipeline_bytes` go together, and at least one."""
    start = nbytes = 0
    for at, request in enumerate(requests):
        if at > start and (nbytes + request.nbytes > pipeline_bytes or at - start == COMMANDS):
            yield requests[start:at]
            start, nbytes = at, 0
        nbytes += request.nbytes
    if start < len(requests):
        yield requests[start:]


def monotonic() -> float:
    """The clock of everything here that waits."""
    return time.monotonic()
