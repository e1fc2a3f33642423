"""Which node of a cluster has which key, as the nodes themselves tell it (`CLUSTER SLOTS`). It asks nobody."""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, cast, final

from redis.crc import key_slot

from kvcache_storage_redis.errors import Address

SLOTS: Final = 16384


class SlotRange(NamedTuple):
    """Slots `first` to `last`, both included, and the node that takes writes for them."""

    first: int
    last: int
    address: Address


@final
class SlotMap:
    """By slot, the node that has it; frozen."""

    def __init__(self, ranges: Sequence[SlotRange]) -> None:
        by_slot: list[Address | None] = [None] * SLOTS
        for first, last, address in ranges:
            by_slot[first : last + 1] = [address] * (last + 1 - first)
        self._by_slot = tuple(by_slot)
        self.addresses = tuple(dict.fromkeys(found.address for found in ranges))

    def address_of(self, key: bytes) -> Address | None:
        """None where no node has the key's slot."""
        return self._by_slot[key_slot(key)]


def parse_slots(reply: Any, asked: Address) -> list[SlotRange]:
    """The ranges in a node's reply to `CLUSTER SLOTS`. A node that does not know its name leaves it out: then it is `asked`'s.

    Raises ValueError: the reply is no such list.
    """
    try:
        return [_range(cast("list[Any]", entry), asked) for entry in reply]
    except (TypeError, IndexError, AttributeError, UnicodeDecodeError) as error:
        raise ValueError(f"CLUSTER SLOTS was answered with {type(reply).__name__}") from error


def _range(entry: list[Any], asked: Address) -> SlotRange:
    first, last, (name, port, *_) = entry[0], entry[1], entry[2]
    host = asked.host if name in (None, b"", b"?") else name.decode()
    return SlotRange(int(first), int(last), Address(host, int(port)))
