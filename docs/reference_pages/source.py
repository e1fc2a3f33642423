"""What the source says of its classes: fields, methods and the texts below them, read with `ast`.

Reading instead of importing keeps jax out, and only the source has the texts that stand below fields. It does not know which
classes go on which page.
"""

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path


class UndocumentedError(Exception):
    """A name that users see has no description. Nothing was written."""


@dataclass(frozen=True, slots=True)
class FieldText:
    """`default`: as it is written in the source; None for a field without one."""

    name: str
    type: str
    default: str | None
    text: str


@dataclass(frozen=True, slots=True)
class MethodText:
    """`signature`: `name(arguments) -> result`, without `self`."""

    name: str
    signature: str
    text: str


@dataclass(frozen=True, slots=True)
class ClassText:
    """One class as its source describes it. Texts are empty where there is none; `described` refuses those."""

    name: str
    bases: tuple[str, ...]
    text: str
    fields: tuple[FieldText, ...]
    methods: tuple[MethodText, ...]


def described(text: str | None, name: str) -> str:
    """`text`, or an UndocumentedError that says whose it should have been."""
    if text is None or not text.strip():
        raise UndocumentedError(f"{name} has no description: give it one, and run `make docs`")
    return text.strip()


def module_file(module: str) -> Path:
    """Where the source of an importable module is; only its parent packages are imported."""
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        raise FileNotFoundError(f"no module {module}: `make sync` installs the workspace")
    return Path(spec.origin)


def classes_in(source: str) -> Mapping[str, ClassText]:
    """The top-level classes of a module, by name, in the order of the source."""
    return {node.name: _class(node) for node in ast.parse(source).body if isinstance(node, ast.ClassDef)}


def classes_of(module: str) -> Mapping[str, ClassText]:
    """The top-level classes of an importable module."""
    return classes_in(module_file(module).read_text(encoding="utf-8"))


def _class(node: ast.ClassDef) -> ClassText:
    methods = tuple(_method(item) for item in node.body if isinstance(item, ast.FunctionDef) and not item.name.startswith("_"))
    bases = tuple(ast.unparse(base) for base in node.bases)
    return ClassText(node.name, bases, ast.get_docstring(node) or "", tuple(_fields(node.body)), methods)


def _fields(body: Sequence[ast.stmt]) -> Iterator[FieldText]:
    for item, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and not item.target.id.startswith("_"):
            default = None if item.value is None else ast.unparse(item.value)
            yield FieldText(item.target.id, ast.unparse(item.annotation), default, _text_in(after))


def _text_in(statement: ast.stmt | None) -> str:
    """The text of a statement that is nothing but one."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant) and isinstance(statement.value.value, str):
        return statement.value.value
    return ""


def _method(node: ast.FunctionDef) -> MethodText:
    arguments = ast.unparse(node.args).removeprefix("self").removeprefix(", ")
    result = "" if node.returns is None else f" -> {ast.unparse(node.returns)}"
    return MethodText(node.name, f"{node.name}({arguments}){result}", ast.get_docstring(node) or "")
