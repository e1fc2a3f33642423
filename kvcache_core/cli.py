"""Entry of `kvcache`: finds the command, runs it, and turns what it raises into an exit status.

Commands of other packages come through the hook `kvcache_commands`; their modules are imported only when they are chosen.
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any, Protocol

import kvcache_core
from kvcache_core.command_parser import CommandParser
from kvcache_core.errors import InvalidConfigError, KVCacheError
from kvcache_core.interrupted import Interrupted
from kvcache_core.registry.default import default_registry
from kvcache_core.registry.known import Kind, pip_command
from kvcache_core.registry.loading import load_target
from kvcache_core.registry.registry import Registry, State
from kvcache_core.standard_output import NO_ROOM, escape_what_cannot_be_encoded, flush_output, give_up_output

RUN = "kvcache_run"
"""The attribute of the parsed namespace that holds the function to call. Long, because plugins' commands share the namespace."""

EXIT_STATUSES: Mapping[int, str] = MappingProxyType(
    {
        0: "done",
        1: "a check found something wrong (`plugins doctor`), or some requests were not answered (`run`)",
        2: "the command line, the configuration, a plugin or a file that was named cannot be used; nothing was done",
        130: "interrupted (Ctrl-C; 143: by SIGTERM, where a command reports what it has done before it ends)",
    }
)
"""What the exit statuses of every command mean; a plugin's command may use others as well."""

BUILT_IN: Mapping[str, str] = MappingProxyType(
    {
        "config": "check a configuration file and see what it comes down to",
        "plugins": "list the installed plugins and check them",
    }
)
"""The command groups of the core, with their summaries."""

_EPILOG = """examples:
  kvcache config validate cache.yaml        is this file right, and what would it choose here?
  kvcache config explain cache.yaml         which cache would be built, and why
  kvcache plugins list                      what is installed, and what is broken

`kvcache COMMAND --help` shows the options and examples of a command."""


class _Group(Protocol):
    """What a module of kvcache_core.commands has."""

    @property
    def COMMANDS(self) -> tuple[str, ...]: ...  # noqa: N802 - a module's constant

    def fill(
        self, group: argparse.ArgumentParser, registry: Registry, run: str, add_strict: Callable[[argparse.ArgumentParser], None]
    ) -> None: ...


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line (default: this process's) and return its exit status. No traceback for what a user can cause."""
    try:
        try:
            escape_what_cannot_be_encoded()
            return _dispatch(list(sys.argv[1:] if argv is None else argv))
        finally:
            flush_output()
    except InvalidConfigError as error:
        print(error, file=sys.stderr)
        return 2
    except KVCacheError as error:
        print(f"kvcache: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as interrupt:
        print("kvcache: interrupted", file=sys.stderr)
        return interrupt.status if isinstance(interrupt, Interrupted) else 130
    except OSError as error:
        if not isinstance(error, BrokenPipeError) and error.errno not in NO_ROOM:
            raise
        return give_up_output(error)


def _dispatch(argv: list[str]) -> int:
    registry = default_registry()
    words = [word for word in argv if not word.startswith("-")]
    chosen = words[0] if words else None
    parser = build_parser(registry, chosen)
    if chosen is not None:
        _refuse_unknown(chosen, registry)
        if chosen in BUILT_IN:
            _refuse_unknown_in_group(chosen, words[1:])
    args = parser.parse_args(argv)
    if vars(args).get("strict_plugins"):
        registry.check_strict()
    run = vars(args).get(RUN)
    if run is None:
        parser.print_help()
        return 0
    return run(args)


def build_parser(registry: Registry, chosen: str | None) -> argparse.ArgumentParser:
    """The parser of the whole command line. Only the command `chosen` has its arguments: it alone is imported.

    Raises:
        PluginError: the module with the arguments of `chosen` cannot be imported.
    """
    parser = CommandParser(
        prog="kvcache",
        description="Configure, check and run multi-level KV caches made of plugins.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"kvcache {kvcache_core.__version__}")
    _add_strict(parser)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for name, summary in BUILT_IN.items():
        command = commands.add_parser(name, help=summary, description=summary, allow_abbrev=False)
        if name == chosen:
            _group(name).fill(command, registry, RUN, _add_strict)
    for name in registry.names(Kind.COMMAND):
        offer = registry.command(name)
        summary = offer.descriptor.summary
        command = commands.add_parser(name, help=summary, description=summary, allow_abbrev=False)
        if name == chosen:
            _add_strict(command)
            load_target(offer.descriptor.configure, offer.source)(command)
            command.set_defaults(**{RUN: _lazy(offer.descriptor.run, offer.source)})
    return parser


def _group(name: str) -> _Group:
    # The configuration costs a third of the start, so it is imported only for those who ask for it.
    if name == "config":
        from kvcache_core.commands import config as group
    else:
        from kvcache_core.commands import plugins as group
    return group


def _lazy(target: str, source: Any) -> Callable[[argparse.Namespace], int]:
    return lambda args: int(load_target(target, source)(args) or 0)


def _add_strict(parser: argparse.ArgumentParser) -> None:
    # Suppressed where absent, so that a sub-command's default does not overwrite what was given before the sub-command.
    parser.add_argument(
        "--strict-plugins",
        action="store_true",
        default=argparse.SUPPRESS,
        help="refuse to run while any installed plugin is broken",
    )


def _refuse_unknown(chosen: str, registry: Registry) -> None:
    """Say more than argparse would: a broken plugin's trouble, the pip command of a package of ours, or the nearest name."""
    known = (*BUILT_IN, *registry.names(Kind.COMMAND))
    if chosen in known:
        return
    if registry.state(Kind.COMMAND, chosen) is State.BROKEN or pip_command(Kind.COMMAND, chosen) is not None:
        registry.command(chosen)
    raise _no_command(chosen, chosen, known)


def _refuse_unknown_in_group(group: str, words: Sequence[str]) -> None:
    # Neither the top level nor a group has an option with a value, so the first word here can only be a command of the group.
    known = _group(group).COMMANDS
    if words and words[0] not in known:
        raise _no_command(f"{group} {words[0]}", words[0], known)


def _no_command(shown: str, word: str, known: Sequence[str]) -> KVCacheError:
    close = get_close_matches(word, known, n=1)
    hint = f"did you mean '{close[0]}'?" if close else f"commands: {', '.join(known)}"
    return KVCacheError(f"no command '{shown}' ({hint})")
