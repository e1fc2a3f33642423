"""docs/reference/commands.md: every command with its arguments, as its `--help` has them."""

import argparse
from collections.abc import Iterator

from kvcache_core.cli import build_parser
from kvcache_core.config.flags import DESTINATION
from kvcache_core.registry.registry import Registry
from reference_pages.markdown import block, code, page, table
from reference_pages.source import described
from reference_pages.workspace import workspace_registry

INTRODUCTION = """What `kvcache COMMAND --help` says, for the packages of this checkout. "Cache flags" are those of
[configuration.md](configuration.md) and `--set KEY=VALUE`. What the exit statuses mean stands there too."""
CACHE_FLAGS = "And the cache flags"


def commands_page() -> str:
    """The page for this core and the plugins of this checkout."""
    return render(workspace_registry())


def render(registry: Registry) -> str:
    """The page for any plugins; raises UndocumentedError."""
    parts = list(_commands(build_parser(registry, None), registry))
    return page("Commands", INTRODUCTION, *parts)


def _commands(parser: argparse.ArgumentParser, registry: Registry) -> Iterator[str]:
    """One section a command, depth first; groups have one of their own."""
    yield command_section(parser)
    for name, command in _subparsers(parser).items():
        # A command has its arguments only in the parser that was built for it.
        if parser.prog == "kvcache":
            command = _subparsers(build_parser(registry, name))[name]
        yield from _commands(command, registry)


def command_section(parser: argparse.ArgumentParser) -> str:
    """Heading, description, arguments and epilog of one command; raises UndocumentedError."""
    rows: list[tuple[str, str]] = []
    cache_flags = False
    for action in _actions(parser):
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 - see _subparsers
            continue
        if action.dest == DESTINATION:
            cache_flags = True
        elif action.dest != "help":
            rows.append((code(_spelling(action)), _help(action, parser)))
    parts = [f"## {parser.prog}", described(parser.description, parser.prog)]
    inner = _subparsers(parser)
    if inner:
        parts.append("Commands: " + ", ".join(code(name) for name in inner))
    if rows:
        parts.append(table(("argument", "meaning"), rows))
    if cache_flags:
        parts.append(f"{CACHE_FLAGS}.")
    if parser.epilog:
        parts.append(block(parser.epilog))
    return "\n\n".join(parts)


def _help(action: argparse.Action, parser: argparse.ArgumentParser) -> str:
    # argparse formats help texts with %.
    return described(action.help, f"{parser.prog} {_spelling(action)}").replace("%%", "%")


def _spelling(action: argparse.Action) -> str:
    """`--flag VALUE`, or the name of a positional argument; `[NAME]` where it may be left out."""
    name = str(action.metavar or action.dest.upper())
    if not action.option_strings:
        return f"[{name}]" if action.nargs == "?" else name
    return ", ".join(action.option_strings) if action.nargs == 0 else f"{', '.join(action.option_strings)} {name}"


def _subparsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    for action in _actions(parser):
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 - argparse has no public name for it
            return dict(action.choices)
    return {}


def _actions(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return parser._actions  # noqa: SLF001 - argparse has no public way to list what was added
