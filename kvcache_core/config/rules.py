"""The rules that tie fields of a configuration together, as pure functions over plain data.

They look at raw values, before and independent of the type checks, so that a file with a typing error and a wrong combination
shows both at once. They know nothing of what is installed; that is resolution's part.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, cast

from kvcache_core.config.problems import Loc

BackupOn = Literal["insert", "evict"]
PersistOn = Literal["insert", "evict", "never"]
WritePolicy = Literal["write_through", "write_through_and_back"]

DECODE_CACHE = "chunk_cache"


class WriteSettings(NamedTuple):
    """When pages are copied L1 -> L2 (`backup_on`) and L2 -> L3 (`persist_on`)."""

    backup_on: BackupOn
    persist_on: PersistOn


PRESETS: Mapping[WritePolicy, WriteSettings] = MappingProxyType(
    {
        "write_through": WriteSettings("insert", "never"),
        "write_through_and_back": WriteSettings("insert", "evict"),
    }
)
"""RFC-1's two policies, as presets of the two settings."""


class Breach(NamedTuple):
    """A broken rule, at the field a user would change."""

    loc: Loc
    message: str


def is_decode(mode: object) -> bool:
    return mode == "decode"


def breaches_of_config(raw: Mapping[str, Any]) -> list[Breach]:
    """The broken rules of a whole configuration."""
    found: list[Breach] = []
    if is_decode(raw.get("disaggregation_mode")):
        cache_type = raw.get("cache_type")
        if cache_type not in (None, DECODE_CACHE):
            text = (
                f"disaggregation_mode 'decode' allows only '{DECODE_CACHE}', not {cache_type!r}: a decode node gets its KV from "
                "the prefill node and has no prefixes to reuse; remove cache_type"
            )
            found.append(Breach(("cache_type",), text))
        if raw.get("hicache") is not None:
            text = (
                "disaggregation_mode 'decode' cannot have hicache: offloading from decode nodes (DecodeKVCacheOffloadManager) is "
                "future work; remove hicache"
            )
            found.append(Breach(("hicache",), text))
    hicache = raw.get("hicache")
    if isinstance(hicache, Mapping):
        section = cast(Mapping[str, Any], hicache)
        found += [Breach(("hicache", *loc), message) for loc, message in breaches_of_hicache(section)]
    return found


def breaches_of_hicache(raw: Mapping[str, Any]) -> list[Breach]:
    """The broken rules inside the section `hicache`."""
    found: list[Breach] = []
    if raw.get("write_policy") is not None:
        for setting in ("backup_on", "persist_on"):
            if raw.get(setting) is not None:
                text = f"{setting} and write_policy are two ways to say the same thing; give one of them"
                found.append(Breach((setting,), text))
    if raw.get("persist_on") not in (None, "never") and not has_storage(raw.get("storage")):
        found.append(Breach(("persist_on",), "there is no storage to persist to; set hicache.storage, or persist_on: never"))
    if raw.get("host_bytes") is not None and raw.get("ratio") is not None:
        found.append(Breach(("host_bytes",), "ratio and host_bytes are two ways to size the host pool; give one of them"))
    return found


def has_storage(slot: object) -> bool:
    """Whether a raw value of `hicache.storage` names a backend; RFC-1 spells the absence of one 'none'."""
    if isinstance(slot, Mapping):
        return cast(Mapping[str, Any], slot).get("kind") not in (None, "none")
    return slot not in (None, "none")


def write_settings(
    policy: WritePolicy | None, backup_on: BackupOn | None, persist_on: PersistOn | None, *, storage: bool
) -> WriteSettings:
    """What is done in the end: a preset, or settings completed from the default preset. Without storage nothing is persisted."""
    preset = PRESETS[policy or ("write_through_and_back" if storage else "write_through")]
    return WriteSettings(backup_on or preset.backup_on, (persist_on or preset.persist_on) if storage else "never")
