"""What a cache counts. One object per cache, plain integers, no global state; a host reads them, nobody resets them."""

from collections import Counter
from dataclasses import dataclass, field, fields
from typing import cast


@dataclass(slots=True)
class CacheCounters:
    """Totals since the cache was built. Tokens of every component unless a name says otherwise; a recurrent state is one."""

    lookups: int = 0
    """Calls of `lock_ref` that succeeded; `match_prefix` is pure and not counted."""
    inserted_tokens: int = 0
    """Tokens whose data moved to the cache."""
    duplicate_tokens: int = 0
    """Offered tokens whose place was taken."""
    device_evicted_tokens: int = 0
    """Tokens of the component that `evict` was asked for, whose device data it freed; a state counts one. Windows and states that
    went along with full attention are not counted again."""
    host_evicted_tokens: int = 0
    """Tokens of the component that had no room, or that `evict` was asked for, whose host data was freed; a state counts one."""
    host_written_tokens: int = 0
    """Tokens copied L1 -> L2; counted when the copy is committed."""
    host_loaded_tokens: int = 0
    """Tokens copied L2 -> L1; counted when the copy is committed."""
    storage_written_tokens: int = 0
    """Tokens that the storage took (L2 -> L3) or had already, by its own answer."""
    storage_loaded_tokens: int = 0
    """Tokens fetched from the storage and verified (L3 -> L2)."""
    storage_state: str = ""
    """How the storage is: empty without one, else `ok`, or what is wrong with it and since when."""
    bytes_moved: Counter[str] = field(default_factory=Counter[str])
    """By direction: `d2h`, `h2d`, `store`, `fetch`."""
    seconds_moving: Counter[str] = field(default_factory=Counter[str])
    """Seconds by the same directions, as floats. `d2h`: from dispatch until the batch was complete, or was seen to be. `h2d`:
    from dispatch to commit, an upper bound: the buffers are donated on, so nobody can see when a load has arrived."""
    dropped: Counter[str] = field(default_factory=Counter[str])
    """Tokens given up, by reason: their data left a tier for good without the copy that it should have had below."""
    postponed: Counter[str] = field(default_factory=Counter[str])
    """Tokens whose copy to a lower tier was skipped or failed while their data stayed, by reason. It is tried again when the data
    is used or evicted, and counted with every try: these are attempts, not losses."""
    misses: Counter[str] = field(default_factory=Counter[str])
    """Lookups in a lower tier that gave nothing, by reason."""

    def as_dict(self) -> dict[str, object]:
        """A JSON-ready copy."""
        # Not dataclasses.asdict: it rebuilds a Counter from its pairs and so counts the pairs.
        result: dict[str, object] = {}
        for spec in fields(self):
            value: object = getattr(self, spec.name)
            result[spec.name] = dict(cast("Counter[str]", value)) if isinstance(value, Counter) else value
        return result
