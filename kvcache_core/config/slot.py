"""The slot for a storage backend: `kind` names an installed plugin, everything beside it belongs to that plugin.

Never a closed union: which kinds exist is asked of the registry at validation, the one in the validation context
(`CacheConfig.model_validate(data, context={"registry": registry})`) or else the default one.
"""

from collections.abc import Mapping
from typing import Annotated, Any, cast

from pydantic import (
    BaseModel,
    ConfigDict,
    GetJsonSchemaHandler,
    PlainSerializer,
    PlainValidator,
    SerializeAsAny,
    ValidationError,
    ValidationInfo,
    model_serializer,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, InitErrorDetails, PydanticCustomError

from kvcache_core.config.secrets import without_secrets
from kvcache_core.errors import PluginError, did_you_mean
from kvcache_core.registry.default import default_registry
from kvcache_core.registry.descriptors import PluginOptions
from kvcache_core.registry.known import Kind
from kvcache_core.registry.registry import Registry


class StorageSlot(BaseModel):
    """A validated choice of backend. `options` is an instance of the descriptor's own options model.

    Dumps as it is written: {"kind": ..., <the plugin's options>}.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: str
    options: SerializeAsAny[PluginOptions]

    @model_serializer(mode="plain")
    def _flat(self) -> dict[str, Any]:
        return {"kind": self.kind} | self.options.model_dump()


def registry_of(info: ValidationInfo) -> Registry:
    """The registry that the caller of the validation passed, or the default one."""
    context = cast(Mapping[str, Any] | None, info.context)
    registry = None if context is None else context.get("registry")
    return registry if isinstance(registry, Registry) else default_registry()


def problem(text: str, suggestion: str | None = None) -> PydanticCustomError:
    """An error whose text is shown as it is; pydantic would read braces in it as placeholders."""
    context = {"text": text, "hint": did_you_mean(suggestion), "suggestion": suggestion}
    return PydanticCustomError("kvcache", "{text}{hint}", context)


def _fill(value: object, info: ValidationInfo) -> StorageSlot | None:
    if value is None or isinstance(value, StorageSlot):
        return value
    if not isinstance(value, (str, Mapping)):
        # Not what it is: a stray dash makes a list of a mapping with a password in it.
        raise problem(f"must be a kind such as 'file', or a mapping with a key 'kind', not a {type(value).__name__}")
    raw = {"kind": value} if isinstance(value, str) else dict(cast(Mapping[str, Any], value))
    kind = raw.pop("kind", None)
    registry = registry_of(info)
    if kind == "none":
        if raw:
            raise problem(f"kind 'none' has no options, but {', '.join(map(repr, raw))} given")
        return None
    if not isinstance(kind, str):
        installed = ", ".join(registry.names(Kind.STORAGE)) or "none"
        raise problem(f"needs a key 'kind' with the name of a storage backend (installed: {installed})")
    if "://" in kind:  # it is not quoted: it may have a password
        raise problem("a kind is a name, such as 'redis'; a URL belongs beside it: {kind: redis, url: ...}")
    try:
        offer = registry.storage(kind)
    except PluginError as error:
        where = () if isinstance(value, str) else ("kind",)
        raise ValidationError.from_exception_data(
            "storage", [InitErrorDetails(type=problem(error.message, error.suggestion), loc=where, input=kind)]
        ) from error
    model = offer.descriptor.options
    try:
        return StorageSlot(kind=kind, options=model.model_validate(raw, context=info.context))
    except ValidationError as error:
        # Merged by pydantic into the outer one, under the slot's own path. The first one quotes what was given, secrets included.
        raise without_secrets(error, model) from None


class _SlotSchema:
    """The JSON schema of the slot where nobody says which kinds are installed."""

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        one = {"type": "object", "properties": {"kind": {"type": "string"}}, "required": ["kind"], "additionalProperties": True}
        return {"anyOf": [one, {"type": "string"}, {"type": "null"}]}


def _as_it_is(value: StorageSlot | None) -> Any:
    # pydantic would otherwise send what StorageSlot's own serializer gave through that serializer once more.
    return value


StorageChoice = Annotated[StorageSlot | None, PlainValidator(_fill), PlainSerializer(_as_it_is, return_type=Any), _SlotSchema()]
"""The type of the field `hicache.storage`."""


def slot_schema(registry: Registry) -> tuple[JsonSchemaValue, dict[str, JsonSchemaValue]]:
    """The JSON schema of the slot as a union of the installed kinds, discriminated by `kind`, and its definitions."""
    variants: list[JsonSchemaValue] = []
    mapping: dict[str, str] = {}
    definitions: dict[str, JsonSchemaValue] = {}
    kinds = registry.names(Kind.STORAGE)
    for kind in kinds:
        descriptor = registry.storage(kind).descriptor
        schema = descriptor.options.model_json_schema(ref_template=f"#/$defs/storage_{kind}.{{model}}")
        for name, definition in schema.pop("$defs", {}).items():
            definitions[f"storage_{kind}.{name}"] = definition
        schema["title"] = f"storage_{kind}"
        schema["description"] = descriptor.summary
        schema["properties"] = {"kind": {"const": kind}} | schema.get("properties", {})
        schema["required"] = ["kind", *schema.get("required", [])]
        definitions[f"storage_{kind}"] = schema
        mapping[kind] = f"#/$defs/storage_{kind}"
        variants.append({"$ref": mapping[kind]})
    short: JsonSchemaValue = {"enum": [*kinds, "none", None], "description": "a kind alone, for {kind: ...}; none is L1 + L2"}
    union: JsonSchemaValue = {"oneOf": variants, "discriminator": {"propertyName": "kind", "mapping": mapping}}
    return {"anyOf": [union, short] if variants else [short], "default": None}, definitions
