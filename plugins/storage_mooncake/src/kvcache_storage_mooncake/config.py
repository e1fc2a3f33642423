"""What may stand beside `kind: mooncake`. It knows only what is possible, nothing of any server. There are no secrets: the store
knows no users."""

import re
from typing import Annotated

from pydantic import ConfigDict, Field, field_validator

from kvcache_core.config.sizes import SizeInBytes
from kvcache_core.registry.descriptors import PluginOptions

_MASTER = re.compile(r"[A-Za-z0-9._-]+:[0-9]{1,5}")


class MooncakeOptions(PluginOptions):
    """Options of MooncakeStorage."""

    model_config = ConfigDict(strict=True, validate_default=True)

    master: str = Field(description="where mooncake_master listens, host:port; it uses 50051 unless told otherwise")
    hostname: str | None = Field(
        default=None, min_length=1, description="this machine's address as the others reach it; null: the one that reaches master"
    )
    metadata: str = Field(
        default="P2PHANDSHAKE", min_length=1, description="the store's metadata server; P2PHANDSHAKE is none, as with its holders"
    )
    segment_bytes: SizeInBytes = Field(
        default=0, ge=0, le=2**50, description="memory that this process adds to the store; its pages go when the process ends"
    )
    buffer_bytes: Annotated[SizeInBytes, Field(ge=2**20, le=2**36)] = Field(
        default=64 * 2**20, description="registered memory for pages under way; a page is smaller than this"
    )
    key_prefix: str = Field(
        default="kvcache/", max_length=200, pattern=r"^[A-Za-z0-9_.:/=-]*$", description="begins the name of every page"
    )
    timeout: float = Field(
        default=4.0, gt=0, le=600, allow_inf_nan=False, description="seconds for a batch; keep it below hicache.storage_timeout"
    )
    connect_timeout: float = Field(
        default=1.0, gt=0, le=600, allow_inf_nan=False, description="seconds for master to accept a connection at the start"
    )

    @field_validator("master")
    @classmethod
    def _is_an_address(cls, master: str) -> str:
        if not _MASTER.fullmatch(master) or not 0 < int(master.rpartition(":")[2]) < 2**16:
            raise ValueError("must be host:port")
        return master

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.master.rpartition(":")
        return host, int(port)
