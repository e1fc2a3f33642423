"""What a user writes: `CacheConfig`. Frozen; unknown keys, near-miss types and wrong combinations are errors, from YAML and from
plain Python alike (there as pydantic's ValidationError; `kvcache_core.config.load` turns it into a ConfigError with places).

It knows which values are possible, not what is installed (except the storage slot's options) nor which cache will be built.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import InitErrorDetails

from kvcache_core.config.rules import (
    BackupOn,
    Breach,
    PersistOn,
    WritePolicy,
    WriteSettings,
    breaches_of_config,
    breaches_of_hicache,
    write_settings,
)
from kvcache_core.config.sizes import SizeInBytes
from kvcache_core.config.slot import StorageChoice, problem
from kvcache_core.contracts.model_spec import ModelClass

DisaggregationMode = Literal["null", "prefill", "decode"]


def _null_mode(value: object) -> object:
    # YAML reads an unquoted null as None; the RFC's mode is spelled the same.
    return "null" if value is None else value


class HiCacheConfig(BaseModel):
    """The lower tiers: L2 in host memory, and L3 where `storage` names a backend."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, validate_default=True)

    storage: StorageChoice = Field(default=None, description="L3: a storage backend's kind with its options; none is L1 + L2")
    ratio: float | None = Field(
        default=2.0, gt=0, allow_inf_nan=False, description="size of the host pool as a multiple of the device pool's units"
    )
    # The limit is far above any machine's memory, and below where sizes stop fitting into 64 bits: a unit too many is a slip.
    host_bytes: SizeInBytes = Field(
        default=None, gt=0, le=2**50, description="size of the host pool in bytes (or '4GiB'), instead of ratio"
    )
    write_policy: WritePolicy | None = Field(
        default=None,
        description="preset of backup_on and persist_on; default with storage: write_through_and_back, without: write_through",
    )
    backup_on: BackupOn | None = Field(default=None, description="when pages are copied L1 -> L2, instead of write_policy")
    persist_on: PersistOn | None = Field(default=None, description="when pages are copied L2 -> L3, instead of write_policy")
    async_impl: Literal["future", "threadpool"] = Field(
        default="future", description="who waits for copies: the owner thread polls futures, or a bounded thread pool waits"
    )
    host_pool: Literal["per_page", "preallocated"] = Field(
        default="per_page", description="host memory as one array a page, or one preallocated buffer"
    )
    prefetch_threshold: int = Field(
        default=256, ge=1, description="tokens that storage must have beyond what is in memory, for a prefix to be fetched"
    )
    prefetch_timeout: float | None = Field(
        default=3.0,
        ge=0,
        allow_inf_nan=False,
        description="seconds that a queued request waits for storage before it is computed; null: as long as it takes",
    )
    storage_timeout: float = Field(
        default=5.0, gt=0, allow_inf_nan=False, description="seconds that one call into the storage backend may take"
    )
    persist_timeout: float = Field(
        default=30.0,
        ge=0,
        allow_inf_nan=False,
        description="seconds that the end of the program spends on storing what is not stored yet",
    )

    @model_validator(mode="before")
    @classmethod
    def _host_bytes_replace_ratio(cls, raw: object) -> object:
        if not isinstance(raw, Mapping):
            return raw
        values = cast(Mapping[str, Any], raw)
        return {**values, "ratio": None} if values.get("host_bytes") is not None and "ratio" not in values else values

    @model_validator(mode="after")
    def _rules(self) -> Self:
        raw = {name: getattr(self, name) for name in type(self).model_fields}
        if self.ratio is None and self.host_bytes is None:
            _raise([Breach(("ratio",), "the host pool needs a size: give ratio or host_bytes")], raw, "HiCacheConfig")
        _raise(breaches_of_hicache(raw), raw, "HiCacheConfig")
        return self

    @property
    def write_settings(self) -> WriteSettings:
        """What the preset, the settings or the defaults come down to."""
        return write_settings(self.write_policy, self.backup_on, self.persist_on, storage=self.storage is not None)


class CacheConfig(BaseModel):
    """The whole configuration of one cache. Anything absent has a default or is chosen by resolution.

    Raises:
        pydantic.ValidationError: every field and rule that is wrong, at once.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, validate_default=True)

    cache_type: str | None = Field(default=None, min_length=1, description="default: by disaggregation_mode and model class")
    disaggregation_mode: Annotated[DisaggregationMode, BeforeValidator(_null_mode)] = Field(
        default="null", description="role of this node in prefill/decode disaggregation; decode always uses chunk_cache"
    )
    # Only whole pages are ever reused, so a page beyond most contexts would be a cache that never hits: surely a slip.
    page_size: int = Field(default=16, ge=1, le=65536, description="tokens in a page, the same for all components")
    model_class: ModelClass | None = Field(default=None, description="default: what the host says of its model")
    hicache: HiCacheConfig | None = Field(default=None, description="host memory and storage below the device; absent is off")

    @model_validator(mode="after")
    def _rules(self) -> Self:
        raw = {name: getattr(self, name) for name in type(self).model_fields}
        _raise(breaches_of_config(raw), raw, "CacheConfig")
        return self


def _raise(breaches: list[Breach], raw: Mapping[str, Any], title: str) -> None:
    if breaches:
        errors = [InitErrorDetails(type=problem(text), loc=loc, input=raw.get(str(loc[0]))) for loc, text in breaches]
        raise ValidationError.from_exception_data(title, errors)
