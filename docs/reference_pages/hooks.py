"""docs/reference/hooks.md: the hooks a plugin may implement, and the descriptors they give."""

from collections.abc import Sequence
from textwrap import dedent

from reference_pages.markdown import block, code, page, table
from reference_pages.source import ClassText, MethodText, UndocumentedError, classes_of, described

INTRODUCTION = """A plugin is a module named by an entry point in the group `kvcache.v1`. It implements any of the hooks below as
module-level functions marked with `hookimpl`, and each gives a list of frozen descriptors from
`kvcache_core.registry.descriptors`. [plugins.md](../plugins.md) leads from nothing to a published plugin."""


def hooks_page() -> str:
    """The page for the hooks of this core."""
    descriptors = classes_of("kvcache_core.registry.descriptors")
    (specs,) = classes_of("kvcache_core.registry.hookspecs").values()
    observer = classes_of("kvcache_core.deps")["CacheObserver"]
    return render(specs, [c for c in descriptors.values() if c.name.endswith("Descriptor")], observer)


def render(specs: ClassText, descriptors: Sequence[ClassText], observer: ClassText) -> str:
    """The page for any hooks; raises UndocumentedError."""
    return page(
        "Hooks and descriptors",
        INTRODUCTION,
        "## Hooks",
        *(_hook(method) for method in specs.methods),
        "## Descriptors",
        "Every one is a frozen dataclass whose fields are given by keyword.",
        *(_descriptor(descriptor) for descriptor in descriptors),
        "## Events of an observer",
        described(observer.text, observer.name),
        table(("event", "when"), [(code(m.signature), described(m.text, f"{observer.name}.{m.name}")) for m in observer.methods]),
    )


def _hook(method: MethodText) -> str:
    text = described(method.text, f"hook {method.name}")
    before, marker, example = text.partition("Example::")
    if not marker or not example.strip():
        raise UndocumentedError(f"hook {method.name} has no example: its docstring needs one after a line `Example::`")
    code_lines = dedent(example.strip("\n"))
    return "\n\n".join((f"### {method.name}", code(method.signature), before.strip(), block(code_lines, "python")))


def _descriptor(descriptor: ClassText) -> str:
    rows = [
        (
            code(field.name),
            code(field.type),
            "required" if field.default is None else code(field.default),
            described(field.text, f"{descriptor.name}.{field.name}"),
        )
        for field in descriptor.fields
    ]
    text = described(descriptor.text, descriptor.name)
    return f"### {descriptor.name}\n\n{text}\n\n{table(('field', 'type', 'default', 'meaning'), rows)}"
