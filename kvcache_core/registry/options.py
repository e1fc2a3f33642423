"""The base of a plugin's options, apart from the descriptors: it alone needs pydantic, half of the command line's start.

Plugins import it from `kvcache_core.registry.descriptors`, which fetches it on first use.
"""

from pydantic import BaseModel, ConfigDict


class PluginOptions(BaseModel):
    """Base of the options a plugin takes: unknown keys are errors, defaults are validated like values, and all are frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


def is_model(candidate: object) -> bool:
    """Whether a loaded section_model is a pydantic model class."""
    return isinstance(candidate, type) and issubclass(candidate, BaseModel)
