"""Plain YAML scalars by the core schema of YAML 1.2, which is what people expect of a number and of a word.

PyYAML reads YAML 1.1, where `010` is 8, `1:30` is 90, `1_6` is 16, `1e3` is a word and `no` is false. Here `1e3` is a number and
`no` is a word, and what looks like a number but means another one to some readers is refused with the way to write it. Dumping
quotes every word that either version would read as something else. Knows nothing of places or of configurations.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import yaml

_CORE = "tag:yaml.org,2002:"
MERGE_TAG = f"{_CORE}merge"
_UNCLEAR = "tag:kvcache,unclear:"
_START_OF_NUMBER = list("-+.0123456789")

_INT = re.compile(r"^(?:[-+]?(?:0|[1-9][0-9]*)|0o[0-7]+|0x[0-9a-fA-F]+)$")
_FLOAT = re.compile(
    r"^(?:[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
)
_BOOL = re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$")
_NULL = re.compile(r"^(?:~|null|Null|NULL|)$")
_UNCLEAR_FORMS: Mapping[str, re.Pattern[str]] = MappingProxyType(
    {
        "has a leading zero": re.compile(r"^[-+]?0[0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?$"),
        "has a colon, which makes it a number to base 60 for some readers": re.compile(
            r"^[-+]?[0-9]+(?::[0-5]?[0-9])+(?:\.[0-9]*)?$"
        ),
        "has underscores": re.compile(r"^[-+]?(?:[0-9][0-9_]*|0[xob][0-9a-fA-F_]*)_[0-9a-fA-F_]*(?:\.[0-9_]*)?$"),
        "is a binary number": re.compile(r"^[-+]?0b[01]+$"),
    }
)


class CoreLoader(yaml.SafeLoader):
    """Composes nodes whose tags follow the core schema. Only its nodes are used, never its constructors."""

    # A table of this class's own: add_implicit_resolver copies it only where a class has none.
    yaml_implicit_resolvers: dict[str, list[Any]] = {}  # noqa: RUF012 - PyYAML's own name and way


class CoreDumper(yaml.SafeDumper):
    """Quotes a word that YAML 1.1 (its base's table) or the core schema would not read as a word."""


_RESOLVERS: tuple[tuple[str, re.Pattern[str], list[str]], ...] = (
    (f"{_CORE}bool", _BOOL, list("tTfF")),
    (f"{_CORE}null", _NULL, ["~", "n", "N", ""]),
    (f"{_CORE}int", _INT, _START_OF_NUMBER),
    (f"{_CORE}float", _FLOAT, _START_OF_NUMBER),
    (MERGE_TAG, re.compile(r"^<<$"), ["<"]),
    *((f"{_UNCLEAR}{what}", form, _START_OF_NUMBER) for what, form in _UNCLEAR_FORMS.items()),
)
for _class in (CoreLoader, CoreDumper):
    for _tag, _pattern, _starts in _RESOLVERS:
        _class.add_implicit_resolver(_tag, _pattern, _starts)  # pyright: ignore[reportUnknownMemberType]


def dump(document: Mapping[str, Any], *, allow_unicode: bool = True) -> str:
    """A mapping as YAML text that `LocatedDocument` reads back as the same, in order; in ASCII without `allow_unicode`."""
    return yaml.dump(dict(document), Dumper=CoreDumper, sort_keys=False, allow_unicode=allow_unicode)


def tag_fault(node: yaml.Node) -> str | None:
    """What is wrong with a node's tag, written out or not; None for the tags of plain data."""
    match node:
        case yaml.MappingNode():
            fitting = ("map",)
        case yaml.SequenceNode():
            fitting = ("seq",)
        case _:
            fitting = ("str", "int", "float", "bool", "null", "merge")
    tag: str = node.tag
    if tag.startswith(_UNCLEAR) or tag.removeprefix(_CORE) in fitting:
        return None
    shown = tag.replace(_CORE, "!!", 1)
    return f"the tag {shown} is not supported here; write plain YAML without tags"


def scalar(node: yaml.ScalarNode) -> str | int | float | bool | None:
    """The value of a scalar without a tag fault.

    Raises:
        ValueError: a number that readers disagree about, or text that is not what its tag says; with the way to write it.
    """
    text: str = node.value
    tag: str = node.tag
    if tag.startswith(_UNCLEAR):
        why = tag.removeprefix(_UNCLEAR)
        raise ValueError(f"{text} {why}; write a decimal number such as 10, 0.5 or 1e3, or '{text}' in quotes if it is text")
    match tag.removeprefix(_CORE):
        case "null" if _NULL.match(text):
            return None
        case "bool" if _BOOL.match(text):
            return text.lower() == "true"
        case "int" if _INT.match(text):
            # Base 0 understands 0x and 0o, and what the pattern lets through has no leading zero.
            return int(text, 0)
        case "float" if _FLOAT.match(text):
            return float(re.sub(r"\.(inf|nan)$", r"\1", text.lower()))
        case "float" if _INT.match(text):
            return float(int(text, 0))
        case "str" | "merge":
            return text
        case kind:
            raise ValueError(f"{text!r} is no !!{kind}; write plain YAML without tags")
