"""One server, asked many things at once. It knows connections and the order of replies, no pages and no other server."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, final

import redis
from redis import exceptions
from redis.backoff import NoBackoff
from redis.retry import Retry

from kvcache_storage_redis.errors import Address, ServerError, advice_for, one_line
from kvcache_storage_redis.wire import Command, packed

Reply = Any
"""bytes, an integer, a list or None; or an exception, for a command that the server refused or that was not answered."""

_POOL: Final = 64
"""Connections to one server: far more than threads call, because one that hangs keeps its own."""


@dataclass(frozen=True, slots=True)
class Login:
    """How to speak with every server of one store. Files are read when a connection is made."""

    db: int
    username: str | None
    password: str | None = field(repr=False)
    connect_timeout: float
    socket_timeout: float
    tls: bool = False
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    verify: bool = True
    quiet: bool = False
    """Reading is to count as no use, as far as the server can do that."""


@final
class Server:
    """Thread safe, and usable in a forked child. A call takes one connection out of a pool and makes one where there is none.
    Nothing is tried twice: whoever calls decides that.
    """

    def __init__(self, address: Address, login: Login) -> None:
        """Connects to nothing yet."""
        self.address = address
        self._closed = False
        self._secrets = () if not login.password else (login.password,)
        kind, more = (redis.SSLConnection, _tls(login)) if login.tls else (redis.Connection, dict[str, Any]())
        connected: Callable[..., None] | None = _connect_quietly if login.quiet else None
        self._pool: Any = redis.ConnectionPool(
            connection_class=kind,
            max_connections=_POOL,
            host=address.host,
            port=address.port,
            db=login.db,
            username=login.username,
            password=login.password,
            socket_timeout=login.socket_timeout,
            socket_connect_timeout=login.connect_timeout,
            # The library's own retries would turn a refused connection into seconds, and a hung server into many time-outs.
            retry=Retry(NoBackoff(), 0),
            protocol=2,
            redis_connect_func=connected,
            **more,
        )

    def ask(self, commands: Sequence[Command]) -> list[Reply]:
        """One reply for each command, in order; the refusal of a single command is a ResponseError in its place.

        Raises ServerError: the server did not answer all of them; some may have been carried out.
        """
        try:
            connection = self._pool.get_connection()
        except Exception as error:
            raise self._failed(error) from None
        try:
            connection.send_packed_command(packed(commands))
            return [_reply(connection) for _ in commands]
        except (exceptions.RedisError, OSError) as error:
            connection.disconnect()
            raise self._failed(error) from None
        except BaseException:
            # Replies that are still on their way would answer somebody else's commands.
            connection.disconnect()
            raise
        finally:
            self._pool.release(connection)
            if self._closed:
                # A call that had begun before may have connected anew.
                self._pool.disconnect(inuse_connections=False)

    def close(self) -> None:
        """Also ends the calls that are waiting for a reply; what is called later leaves no connection. Idempotent."""
        self._closed = True
        self._pool.disconnect()

    def _failed(self, error: BaseException) -> ServerError:
        return ServerError(self.address, one_line(error, self._secrets), advice_for(error))


def _reply(connection: Any) -> Reply:
    try:
        return connection.read_response()
    except exceptions.ResponseError as error:
        return error


def _connect_quietly(connection: Any) -> None:
    connection.on_connect()
    connection.send_command("CLIENT", "NO-TOUCH", "ON")
    # Servers before 7.2 do not know it, and count what is read as used.
    _reply(connection)


def _tls(login: Login) -> dict[str, Any]:
    return {
        "ssl_ca_certs": _path(login.ca_file),
        "ssl_certfile": _path(login.cert_file),
        "ssl_keyfile": _path(login.key_file),
        # Without one, a key that is encrypted is asked for on the terminal, at every connection, for ever.
        "ssl_password": "",
        "ssl_cert_reqs": "required" if login.verify else "none",
        "ssl_check_hostname": login.verify,
    }


def _path(path: str | None) -> str | None:
    return None if path is None else os.path.expanduser(path)  # noqa: PTH111 - the client library takes text
