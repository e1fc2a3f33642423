"""What may stand beside `kind: file`. It knows only what is possible, nothing of any disk."""

from typing import Literal

from pydantic import ConfigDict, Field

from kvcache_core.config.sizes import SizeInBytes
from kvcache_core.registry.descriptors import PluginOptions

Durability = Literal["none", "batch", "page"]


class FileOptions(PluginOptions):
    """Options of LocalFileStorage."""

    model_config = ConfigDict(strict=True, validate_default=True)

    path: str = Field(
        default="~/.cache/sgl-jax/hicache",
        min_length=1,
        description="root folder, created when it is missing; `~` is the home folder",
    )
    durability: Durability = Field(
        default="none",
        description="what is safe from a power failure when a write returns: nothing, the batch, or page after page",
    )
    max_bytes: SizeInBytes = Field(
        default=None, gt=0, le=2**60, description="the most that pages may take under the root, by all processes; null: no limit"
    )
    min_free_bytes: SizeInBytes = Field(
        default=None, ge=0, le=2**60, description="what stays free on the file system; null: 5 % of it, at most 10GiB"
    )
    workers: int = Field(default=4, ge=1, le=64, description="threads that read and write pages of one batch")
