"""Entry of `kvcache`: finds the command, runs it, and turns what it raises into an exit status.

Commands of other packages come through the hook `kvcache_commands`; their modules are imported only when they are chosen.
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any

import kvcache_core
from kvcache_core.commands import config, plugins
from kvcache_core.errors import InvalidConfigError, KVCacheError
from kvcache_core.registry.default import default_registry
from kvcache_core.registry.known import Kind, pip_command
from kvcache_core.registry.loading import load_target
from kvcache_core.registry.registry import Registry, State
from kvcache_core.standard_output import NO_ROOM, flush_output, give_up_output

RUN = "kvcache_run"
"""The attribute of the parsed namespace that holds the function to call. Long, because plugins' commands share the namespace."""

EXIT_STATUSES: Mapping[int, str] = MappingProxyType(
    {
        0: "done",
        1: "a check found something wrong (`plugins doctor`), or some requests were not answered (`run`)",
        2: "the command line, the configuration, a plugin or a file that was named cannot be used; nothing was done",
        130: "interrupted (Ctrl-C)",
    }
)
"""What the exit statuses of every command mean; a plugin's command may use others as well."""

_EPILOG = """examples:
  kvcache config validate cache.yaml        is this file right, and what would it choose here?
  kvcache config explain cache.yaml         which cache would be built, and why
  kvcache plugins list                      what is installed, and what is broken

`kvcache COMMAND --help` shows the options and examples of a command."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line (default: this process's) and return its exit status. No traceback for what a user can cause."""
    try:
        try:
            return _dispatch(list(sys.argv[1:] if argv is None else argv))
        finally:
            flush_output()
    except InvalidConfigError as error:
        print(error, file=sys.stderr)
        return 2
    except KVCacheError as error:
        print(f"kvcache: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("kvcache: interrupted", file=sys.stderr)
        return 130
    except OSError as error:
        if not isinstance(error, BrokenPipeError) and error.errno not in NO_ROOM:
            raise
        return give_up_output(error)


def _dispatch(argv: list[str]) -> int:
    registry = default_registry()
    chosen = next((word for word in argv if not word.startswith("-")), None)
    parser = build_parser(registry, chosen)
    if chosen is not None:
        _refuse_unknown(chosen, registry)
    args = parser.parse_args(argv)
    if vars(args).get("strict_plugins"):
        registry.check_strict()
    run = vars(args).get(RUN)
    if run is None:
        parser.print_help()
        return 0
    return run(args)


def build_parser(registry: Registry, chosen: str | None) -> argparse.ArgumentParser:
    """The parser of the whole command line. Of the plugins' commands, only `chosen` has its arguments: it alone is imported.

    Raises:
        PluginError: the module with the arguments of `chosen` cannot be imported.
    """
    parser = argparse.ArgumentParser(
        prog="kvcache",
        description="Configure, check and run multi-level KV caches made of plugins.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"kvcache {kvcache_core.__version__}")
    _add_strict(parser)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    config.add_to(commands, registry, RUN, _add_strict)
    plugins.add_to(commands, registry, RUN, _add_strict)
    for name in registry.names(Kind.COMMAND):
        offer = registry.command(name)
        summary = offer.descriptor.summary
        command = commands.add_parser(name, help=summary, description=summary, allow_abbrev=False)
        if name == chosen:
            _add_strict(command)
            load_target(offer.descriptor.configure, offer.source)(command)
            command.set_defaults(**{RUN: _lazy(offer.descriptor.run, offer.source)})
    return parser


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
    known = ("config", "plugins", *registry.names(Kind.COMMAND))
    if chosen in known:
        return
    if registry.state(Kind.COMMAND, chosen) is State.BROKEN or pip_command(Kind.COMMAND, chosen) is not None:
        registry.command(chosen)
    close = get_close_matches(chosen, known, n=1)
    hint = f"did you mean '{close[0]}'?" if close else f"commands: {', '.join(known)}"
    raise KVCacheError(f"no command '{chosen}' ({hint})")
