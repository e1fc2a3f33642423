"""The JSON schema of a whole configuration file, with the installed storage kinds and sections."""

from typing import Any, cast

from kvcache_core.config.model import CacheConfig
from kvcache_core.config.slot import slot_schema
from kvcache_core.errors import PluginError
from kvcache_core.registry.known import Kind
from kvcache_core.registry.loading import load_target
from kvcache_core.registry.options import is_model
from kvcache_core.registry.registry import Registry


def config_schema(registry: Registry) -> tuple[dict[str, Any], list[str]]:
    """The schema, and one sentence for each section that had to be left open because its model cannot be imported."""
    schema = CacheConfig.model_json_schema()
    definitions = cast(dict[str, Any], schema.setdefault("$defs", {}))
    slot, more = slot_schema(registry)
    # `disaggregation_mode: null` is the mode "null"; the model itself only sees it after that translation.
    mode = schema["properties"]["disaggregation_mode"]
    mode["enum"] = [*mode["enum"], None]
    mode.pop("type", None)
    hicache = definitions["HiCacheConfig"]["properties"]
    slot["description"] = hicache["storage"]["description"]
    hicache["storage"] = slot
    hicache["host_bytes"]["anyOf"].append({"type": "string", "pattern": r"^\d+ ?(KiB|MiB|GiB|TiB)$"})
    definitions.update(more)
    troubles: list[str] = []
    for name in registry.names(Kind.SECTION):
        offer = registry.section(name)
        try:
            model = load_target(str(offer.descriptor.section_model), offer.source)
        except PluginError as error:
            troubles.append(f"section '{name}' is left open: {error}")
            schema["properties"][name] = {}
            continue
        if is_model(model):
            section = model.model_json_schema(ref_template=f"#/$defs/{name}.{{model}}")
            for inner, definition in section.pop("$defs", {}).items():
                definitions[f"{name}.{inner}"] = definition
            schema["properties"][name] = section
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "kvcache configuration"}, troubles
