"""What a tier holds, by component, and the bytes of it for a million tokens.

Read from the cache's own sizes and from the files of its storage; it knows nothing of snapshots.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from kvcache_core.contracts.pools import DevicePool
from kvcache_engine.engine import Engine
from kvcache_unified_hicache.storage.page_frame import PageFrame

MILLION = 1_000_000


@final
@dataclass(frozen=True, slots=True)
class Holdings:
    """Pages and states of one tier, and their bytes, by component. `tokens`: of which it has the pages of full attention."""

    units: Mapping[str, int]
    nbytes: Mapping[str, int]
    tokens: int

    def per_million(self) -> dict[str, float]:
        """Bytes for a million tokens, by component; empty where nothing is held."""
        return {name: nbytes * MILLION / self.tokens for name, nbytes in self.nbytes.items()} if self.tokens else {}

    def as_dict(self) -> dict[str, Any]:
        return {
            "units": dict(self.units),
            "bytes": dict(self.nbytes),
            "tokens": self.tokens,
            "bytes_per_million_tokens": self.per_million(),
        }


def in_host(engine: Engine) -> Holdings:
    """What L2 holds now, copies under way not counted."""
    sizes = {name: engine.cache.size(name, "host") for name in engine.pools}
    units = {name: size.evictable + size.protected for name, size in sizes.items()}
    return _holdings(engine, units, engine.page_bytes)


def in_files(engine: Engine, folder: Path) -> Holdings:
    """What LocalFileStorage has in `folder`: whole files, with the frame around every page. A page's component is told by its
    size, which must differ."""
    frames = {name: _file_bytes(pool) for name, pool in engine.pools.items()}
    assert len(set(frames.values())) == len(frames), frames
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    return _holdings(engine, {name: sizes.count(size) for name, size in frames.items()}, frames)


def _holdings(engine: Engine, units: Mapping[str, int], unit_bytes: Mapping[str, int]) -> Holdings:
    nbytes = {name: n * unit_bytes[name] for name, n in units.items()}
    return Holdings(units, nbytes, units["full"] * engine.resolution.config.page_size)


def _file_bytes(pool: DevicePool) -> int:
    return PageFrame(pool.page_arrays()).file_bytes
