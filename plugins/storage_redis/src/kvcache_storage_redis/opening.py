"""From options to a store that works: servers are found and asked what they are, or the start fails with what to do about it."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from kvcache_core.contracts.storage import StorageScope
from kvcache_core.errors import StorageError
from kvcache_storage_redis.cluster import Cluster
from kvcache_storage_redis.config import LARGEST_VALUE, RedisOptions
from kvcache_storage_redis.errors import Address, ServerError
from kvcache_storage_redis.facts import ServerFacts, facts_of, smallest_maxmemory
from kvcache_storage_redis.fleet import Fleet, SingleServer
from kvcache_storage_redis.names import Names
from kvcache_storage_redis.server import Login, Server
from kvcache_storage_redis.storage import RedisStorage
from kvcache_storage_redis.url import UrlParts, parse_url

DEFAULT_PORT: Final = 6379
PATH: Final = ("hicache", "storage")

_SHARE: Final = 4
"""A value may take this part of a server's maxmemory. A larger one would push out everything else, or, above maxmemory, push out
everything and not be stored."""

log = logging.getLogger(__name__)


def make(options: RedisOptions, scope: StorageScope) -> RedisStorage:
    """The factory named by the descriptor. Raises StorageError: no server can be used; its text says what to look at."""
    server = _server_of(options)
    login = _login(options, server, read_only=scope.read_only)
    address = Address(server.host, server.port or DEFAULT_PORT)
    try:
        fleet = _fleet(options, address, login)
        try:
            facts = _checked_facts(fleet, options, read_only=scope.read_only)
        except BaseException:
            fleet.close()
            raise
    except ServerError as error:
        advice = f"; {error.advice}" if error.advice else ""
        raise StorageError(f"storage 'redis' cannot use {error}{advice}", path=PATH) from None
    _report(facts, options)
    limit = smallest_maxmemory(facts)
    largest = options.max_value_bytes or min(LARGEST_VALUE, limit // _SHARE if limit else LARGEST_VALUE)
    names = Names(options.key_prefix, scope)
    return RedisStorage(fleet, names, facts, largest=largest, ttl_seconds=options.ttl_seconds, read_only=scope.read_only)


def _server_of(options: RedisOptions) -> UrlParts:
    """The server that is named first, by whichever way."""
    if options.url is not None:
        return parse_url(options.url.get_secret_value())
    password = None if options.password is None else options.password.get_secret_value()
    host = options.host.removeprefix("[").removesuffix("]")  # an IPv6 address as it stands in a URL
    return UrlParts(options.tls, host, options.port, options.db, options.username, password)


def _login(options: RedisOptions, server: UrlParts, *, read_only: bool) -> Login:
    return Login(
        db=server.db or 0,
        username=server.username,
        password=server.password if options.password_file is None else _first_line(options.password_file),
        connect_timeout=options.connect_timeout,
        socket_timeout=options.socket_timeout,
        tls=server.tls,
        ca_file=options.tls_ca_file,
        cert_file=options.tls_cert_file,
        key_file=options.tls_key_file,
        verify=options.tls_verify,
        quiet=read_only,
    )


def _first_line(path: str) -> str:
    """Raises StorageError."""
    try:
        lines = Path(path).expanduser().read_text(encoding="utf-8-sig").splitlines()
    except (OSError, RuntimeError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise StorageError(
            f"storage 'redis' cannot read 'password_file' {path!r}: {reason}", path=(*PATH, "password_file")
        ) from None
    except UnicodeDecodeError:  # its text has bytes of the file
        raise StorageError(f"'password_file' {path!r} is not UTF-8 text", path=(*PATH, "password_file")) from None
    if not lines or not lines[0]:
        raise StorageError(f"'password_file' {path!r} has no password in its first line", path=(*PATH, "password_file"))
    return lines[0]


def _fleet(options: RedisOptions, address: Address, login: Login) -> Fleet:
    pipeline_bytes = options.pipeline_bytes or 1  # never None: the field has a default that is none
    if not options.cluster:
        return SingleServer(Server(address, login), pipeline_bytes)
    others = [node.rpartition(":") for node in options.nodes]
    seeds = [address, *(Address(host.strip("[]"), int(port)) for host, _, port in others)]
    return Cluster(seeds, lambda place: Server(place, login), pipeline_bytes)


def _checked_facts(fleet: Fleet, options: RedisOptions, *, read_only: bool) -> Sequence[ServerFacts]:
    """What the servers that answer say. Raises ServerError: none does, or one is not what the options say."""
    found: list[ServerFacts] = []
    errors: list[ServerError] = []
    for server in fleet.servers():
        try:
            found.append(facts_of(server))
        except ServerError as error:
            errors.append(error)
    if not found:
        raise errors[0]
    for error in errors:
        log.warning("storage 'redis': %s; its pages are misses until it answers", error)
    for facts in found:
        if facts.cluster and not options.cluster:
            raise ServerError(facts.address, "it is a node of a cluster", "set cluster: true")
        if facts.replica and not read_only:
            raise ServerError(facts.address, "it is a replica, which takes no pages", "name the primary, or set cluster: true")
    return found


def _report(facts: Sequence[ServerFacts], options: RedisOptions) -> None:
    """How it evicts and persists, for the log; a user who reads only warnings hears of what should be changed."""
    for found in facts:
        log.info("storage 'redis': %s", found)
        for warning in found.warnings(options.ttl_seconds):
            log.warning("storage 'redis': %s", warning)
    if not options.tls_verify:
        log.warning("storage 'redis': tls_verify is false: anybody on the way can read and change pages")
