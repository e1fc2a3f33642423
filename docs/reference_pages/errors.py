"""docs/reference/errors.md: every error that our packages raise on purpose, with what to do about it."""

import builtins
from collections.abc import Iterator, Mapping
from pathlib import Path

from reference_pages.markdown import page
from reference_pages.source import ClassText, UndocumentedError, classes_in, described
from reference_pages.workspace import workspace_packages

INTRODUCTION = """All of them but `Interrupted` derive from `KVCacheError`, so a host catches one type at start. The `kvcache`
command shows their text without a traceback and exits with status 2; an error with a place in a file shows the line and a
caret."""
TO_DO = "What to do:"
KIT = "kvcache-conformance"
"""Its only errors are failed tests."""


def errors_page() -> str:
    """The page for the packages of this checkout."""
    return render({folder.name: _sources(folder) for name, folder in workspace_packages().items() if name != KIT})


def render(packages: Mapping[str, Mapping[str, str]]) -> str:
    """The page for any packages, given as the sources of their modules by name; raises UndocumentedError."""
    sections: list[str] = []
    for package, modules in packages.items():
        errors = list(_errors(packages, modules))
        if errors:
            sections.append(f"## {package}")
            sections += [_error(module, of) for module, of in errors]
    return page("Errors", INTRODUCTION, *sections)


def _sources(folder: Path) -> dict[str, str]:
    files = sorted(folder.rglob("*.py"))
    names = [".".join(file.relative_to(folder.parent).with_suffix("").parts).removesuffix(".__init__") for file in files]
    return {name: file.read_text(encoding="utf-8") for name, file in zip(names, files, strict=True)}


def _errors(packages: Mapping[str, Mapping[str, str]], modules: Mapping[str, str]) -> Iterator[tuple[str, ClassText]]:
    everywhere = {name: of for sources in packages.values() for source in sources.values() for name, of in _classes(source)}
    for module, source in modules.items():
        for name, of in _classes(source):
            if not name.startswith("_") and _is_error(of, everywhere):
                yield module, of


def _classes(source: str) -> Iterator[tuple[str, ClassText]]:
    yield from classes_in(source).items()


def _is_error(of: ClassText, everywhere: Mapping[str, ClassText]) -> bool:
    bases = [base.rpartition(".")[2] for base in of.bases]
    return any(_is_error(everywhere[base], everywhere) if base in everywhere else _built_in(base) for base in bases)


def _built_in(name: str) -> bool:
    found = vars(builtins).get(name)
    return isinstance(found, type) and issubclass(found, BaseException)


def _error(module: str, of: ClassText) -> str:
    text = described(of.text, f"{module}.{of.name}")
    if TO_DO not in text:
        raise UndocumentedError(f"{module}.{of.name} does not say what to do: its docstring needs a paragraph '{TO_DO} ...'")
    return f"### {of.name}\n\n`{module}.{of.name}({', '.join(of.bases)})`\n\n{text}"
