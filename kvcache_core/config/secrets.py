"""What must not be shown of a configuration: passwords, keys, and the user part of URLs. It knows names, no plugin.

A plugin keeps a secret in a field of pydantic's `SecretStr` or `Secret`, which no dump and no repr shows. What is left are
errors: they quote the line of a file, and the value that was wrong, before any field exists. There a name has to do.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, cast

from pydantic import BaseModel, Secret, SecretBytes, SecretStr
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError, ValidationError

MASK: Final = "*" * 10
"""What pydantic shows in place of a secret."""

UNQUOTED: Final = "a secret has to be in quotes when it begins with a character such as ! & * @ %, or looks like a number"
"""What is said of a secret that YAML does not read as text."""

# A misspelt name counts as well: `pasword` is an unknown key, and its line would be quoted.
_NAME: Final = r"[\w-]*(?:pas+w?|pwd|secret|credential|token(?!s)|[_-]key)[\w-]*(?<!_file)"
_SECRET_NAME: Final = re.compile(_NAME, re.IGNORECASE)
_LINE: Final = re.compile(rf"(?P<name>(?<![\w-]){_NAME}(?![\w-])[\"']?\s*[:=]\s*)(?P<secret>\S.*)", re.IGNORECASE)
_USER: Final = re.compile(
    # Whatever a password is made of: those that have to be escaped and are not are what errors are about.
    r"(?<=//).*(?=@)"
    # Without an @, what is no port is a password whose host was forgotten.
    r"|(?<=//)(?!\[)[^/\s\"']*:(?!\d+(?:[^\w%-]|$))[^\s\"']*"
)
_URL: Final = re.compile(
    r"(?P<name>url[\"']?\s*[:=]\s*+[\"']?+)(?P<secret>.*(?=@)|(?![a-z][\w+.-]*://)[^@\s]*:[^@]*$)", re.IGNORECASE
)


def is_secret_name(name: str) -> bool:
    """Whether a field or key of this name may hold a secret."""
    return _SECRET_NAME.fullmatch(name) is not None


def redacted(line: str) -> str:
    """A line of a file, with stars of the same number over what may be secret, so that a caret below it stays right: everything
    after the name of a secret, what stands before the `@` of a URL, and where one that is malformed may have a password."""
    for named in (_URL, _LINE):
        line = named.sub(lambda found: found["name"] + "*" * len(found["secret"]), line)
    return _USER.sub(lambda found: "*" * len(found[0]), line)


def without_secrets(error: ValidationError, model: type[BaseModel]) -> ValidationError:
    """The same problems of validating `model`, whose inputs can be shown: pydantic keeps, and prints, what it was given."""
    return ValidationError.from_exception_data(error.title, [_shown(detail, model) for detail in error.errors(include_url=False)])


def _shown(detail: ErrorDetails, model: type[BaseModel]) -> InitErrorDetails:
    secrets = {name for name, field in model.model_fields.items() if _holds_secret(field.annotation)}
    shown = masked(detail["input"], secrets)
    if detail["loc"] and (detail["loc"][0] in secrets or is_secret_name(str(detail["loc"][0]))):
        shown = MASK
    # Rebuilt with its text as it is: not every kind can be made anew from its parts.
    context = {name: value for name, value in detail.get("ctx", {}).items() if isinstance(value, (str, int, float))}
    kind: Any = PydanticCustomError(cast(Any, detail["type"]), "{text}", {**context, "text": detail["msg"]})
    return InitErrorDetails(type=kind, loc=detail["loc"], input=shown)


def _holds_secret(annotation: Any) -> bool:
    """Whether a field of this annotation is declared a secret."""
    parts = getattr(annotation, "__args__", ())
    own = isinstance(annotation, type) and issubclass(annotation, (Secret, SecretStr, SecretBytes))
    return own or any(map(_holds_secret, parts))


def masked(value: Any, secrets: Collection[str] = ()) -> Any:
    """A value that was given for something that is no secret itself, as it may be shown: it may have some inside, also under the
    keys `secrets`."""
    if isinstance(value, str):
        return redacted(value)
    if isinstance(value, Mapping):
        items = cast(Mapping[Any, Any], value).items()
        return {key: MASK if key in secrets or is_secret_name(str(key)) else masked(inner) for key, inner in items}
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray)):
        return [masked(inner) for inner in cast(Sequence[Any], value)]
    return value
