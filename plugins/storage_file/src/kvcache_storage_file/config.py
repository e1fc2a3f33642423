"""What may stand beside `kind: file`. It knows only what is possible, nothing of any disk."""

import os
from collections.abc import Mapping
from typing import Any, Literal, cast

from pydantic import ConfigDict, Field, ValidationInfo, field_validator

from kvcache_core.config.sizes import SizeInBytes
from kvcache_core.registry.descriptors import PluginOptions

Durability = Literal["none", "batch", "page"]


class FileOptions(PluginOptions):
    """Options of LocalFileStorage."""

    model_config = ConfigDict(strict=True, validate_default=True)

    path: str = Field(
        default="~/.cache/sgl-jax/hicache",
        min_length=1,
        description="root folder, made when it is missing; relative to the configuration file's folder, `~` is the home folder",
    )
    durability: Durability = Field(
        default="none",
        description="what is safe from a power failure when a write returns: nothing, the batch, or page after page",
    )
    max_bytes: SizeInBytes = Field(
        default=None,
        ge=2048,
        le=2**60,
        description="the most that pages under the root may take, by all processes (or '100GiB'); at least 2KiB, which the "
        "self-test at start needs; null: no limit",
    )
    min_free_bytes: SizeInBytes = Field(
        default=None, ge=0, le=2**60, description="what stays free on the file system; null: 5 % of it, at most 10GiB"
    )
    workers: int = Field(default=4, ge=1, le=64, description="threads that read and write the pages of one batch")

    @field_validator("path")
    @classmethod
    def _beside_the_file(cls, path: str, info: ValidationInfo) -> str:
        """A program that is started elsewhere with the same file finds the same pages."""
        context = cast(Mapping[str, Any] | None, info.context)
        folder = None if context is None else context.get("folder")
        if "\0" in path:
            raise ValueError("must be a path, without a null character")
        return path if folder is None or path.startswith("~") else os.path.normpath(os.path.join(folder, path))  # noqa: PTH118
