"""What a server says of itself: whether it evicts, how much it holds, and what is left after it restarts. Asked once, at opening.

None stands for what it does not tell: an access control list or a managed service may forbid the question.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import final

from redis.exceptions import ResponseError

from kvcache_storage_redis.errors import Address, one_line
from kvcache_storage_redis.server import Reply, Server


@final
@dataclass(frozen=True, slots=True)
class ServerFacts:
    """`software`: name and version. `maxmemory`: bytes; 0 is no limit. `policy`: maxmemory-policy. `append_only`, `snapshots`:
    how data gets on its disk. `cluster`: whether it is a node of one. `replica`: whether it only follows another.
    `refused`: why it did not tell."""

    address: Address
    software: str = "a server that does not tell"
    maxmemory: int | None = None
    policy: str | None = None
    append_only: bool | None = None
    snapshots: bool | None = None
    cluster: bool | None = None
    replica: bool | None = None
    refused: str = ""

    @property
    def evicts(self) -> bool | None:
        """Whether old pages make room for new ones when it is full."""
        if self.policy is None or self.maxmemory is None:
            return None
        return self.maxmemory > 0 and self.policy != "noeviction"

    @property
    def survives_restart(self) -> bool | None:
        """Whether anything is there again after it was restarted; with snapshots alone, what is newer than the last is not."""
        if self.append_only or self.snapshots:
            return True
        return None if self.append_only is None or self.snapshots is None else False

    def __str__(self) -> str:
        room = "unknown" if self.maxmemory is None else "no limit" if not self.maxmemory else f"{self.maxmemory / 2**20:,.0f} MiB"
        kept = {True: "kept over restarts", False: "lost when it restarts", None: "unknown whether kept over restarts"}
        how = " and ".join(name for name, has in (("append-only file", self.append_only), ("snapshots", self.snapshots)) if has)
        parts = [f"{self.software} at {self.address}", f"maxmemory {room}", f"maxmemory-policy {self.policy or 'unknown'}"]
        return "; ".join([*parts, f"pages are {kept[self.survives_restart]}" + (f" ({how})" if how else "")])

    def warnings(self, ttl_seconds: int | None) -> Iterator[str]:
        """What an operator should change, with what it costs to leave it."""
        if self.refused:
            yield f"{self.address} does not tell how it evicts and persists ({self.refused})"
        if self.maxmemory == 0:
            yield (
                f"{self.address} has no maxmemory: it grows until the system ends it; set maxmemory and the policy allkeys-lru"
            )
        elif self.policy == "noeviction":
            yield f"{self.address} evicts nothing: once it is full no page is stored any more; set maxmemory-policy allkeys-lru"
        elif self.policy is not None and self.policy.startswith("volatile-") and ttl_seconds is None:
            yield (
                f"{self.address} evicts only keys with a time to live ({self.policy}), and pages have none: once it is full no "
                "page is stored any more; set ttl_seconds, or maxmemory-policy allkeys-lru"
            )


def facts_of(server: Server) -> ServerFacts:
    """Raises ServerError: it does not answer."""
    everything, save = server.ask([(b"INFO",), (b"CONFIG", b"GET", b"save")])
    if isinstance(everything, Exception):
        return ServerFacts(server.address, refused=one_line(everything))
    told = parse_info(everything)
    valkey = told.get("valkey_version")
    appends, cluster, role = told.get("aof_enabled"), told.get("cluster_enabled"), told.get("role")
    return ServerFacts(
        server.address,
        software=f"Valkey {valkey}" if valkey else f"Redis {told.get('redis_version', 'of an unknown version')}",
        maxmemory=_number(told.get("maxmemory")),
        policy=told.get("maxmemory_policy"),
        append_only=None if appends is None else appends == "1",
        snapshots=_snapshots(save),
        cluster=None if cluster is None else cluster == "1",
        replica=None if role is None else role != "master",
    )


def parse_info(reply: bytes) -> Mapping[str, str]:
    """The lines `name:value` of an answer to `INFO`."""
    lines = reply.decode("utf-8", "replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line and not line.startswith("#"))


def smallest_maxmemory(facts: Sequence[ServerFacts]) -> int | None:
    """Of those that have a limit; None where none has, as far as is known."""
    return min((found.maxmemory for found in facts if found.maxmemory), default=None)


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None


def _snapshots(reply: Reply) -> bool | None:
    if isinstance(reply, ResponseError) or not reply:
        return None
    return bool(dict(zip(reply[::2], reply[1::2], strict=False)).get(b"save"))
