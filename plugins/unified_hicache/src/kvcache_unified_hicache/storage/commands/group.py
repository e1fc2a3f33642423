"""The arguments of `kvcache storage`; what a command does is imported only when it runs."""

import argparse
import importlib
from collections.abc import Callable
from typing import Final, NamedTuple

from kvcache_core.config.flags import add_cache_flags
from kvcache_unified_hicache.storage.commands.units import duration, size

PACKAGE: Final = "kvcache_unified_hicache.storage.commands"


class _Command(NamedTuple):
    module: str
    summary: str
    epilog: str


COMMANDS: Final = {
    "inspect": _Command(
        "inspect_pages",
        "count the stored pages by model, page size and age",
        """examples:
  kvcache storage inspect cache.yaml
  kvcache storage inspect cache.yaml --json
  kvcache storage inspect --hicache-storage file --hicache-storage-path /data/pages

age is the time since a page was last written or read. Nothing is read but the list of pages, and nothing is changed.

exit status: 0; 2 the configuration has no storage, there is none where it says, or its backend cannot list pages""",
    ),
    "verify": _Command(
        "verify_pages",
        "read every stored page and check it against its own checksum",
        """examples:
  kvcache storage verify cache.yaml
  kvcache storage verify cache.yaml --remove

every page of every model is read, the least recently used first: where reading counts as use, their order stays as it was. A bad
page is never served in any case; --remove makes room for a good one, and without it nothing is changed.

exit status: 0 all pages are good; 1 some are bad, removed or not; 2 as for `inspect`""",
    ),
    "prune": _Command(
        "prune_pages",
        "remove stored pages by age, total size or model",
        """examples:
  kvcache storage prune cache.yaml --older-than 7d
  kvcache storage prune cache.yaml --max-bytes 10GiB --dry-run
  kvcache storage prune cache.yaml --model HuggingFaceTB/SmolLM2-135M-Instruct --older-than 12h

it asks nothing and says what it removed, which is all that it removes: max_bytes of the configuration is left to the caches.
Only pages that the backend lists are touched, nothing else that lies in the same place. Conditions together: --older-than first,
then --max-bytes of what is left, the least recently used pages first; with --model, both count and remove pages of that model
only, and alone it removes all of them. Running engines lose nothing but the pages.

exit status: 0; 1 some pages could not be removed; 2 as for `inspect`""",
    ),
    "check": _Command(
        "check_backend",
        "do the start-up self-test of the storage by hand, with timings",
        """examples:
  kvcache storage check cache.yaml
  kvcache storage check --hicache-storage file --hicache-storage-path /data/pages

two pages of random bytes are stored, found, read and deleted; each call has the deadline hicache.storage_timeout. As at the start
of a cache the store is made where it is missing. No page goes because of max_bytes; on a disk without room the oldest make some.

exit status: 0 it works; 1 it does not; 2 the configuration has no storage""",
    ),
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the commands to the parser of `kvcache storage`."""
    parser.set_defaults(storage_command=_helper(parser))
    inner = parser.add_subparsers(title="commands", metavar="COMMAND")
    for name, command in COMMANDS.items():
        sub = inner.add_parser(
            name,
            help=command.summary,
            description=command.summary,
            epilog=command.epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        sub.add_argument("file", metavar="CONFIG", nargs="?", help="a YAML file; without it, flags alone")
        _ARGUMENTS[name](sub)
        sub.add_argument("--json", action="store_true", help="print JSON, for programs")
        add_cache_flags(sub)
        sub.set_defaults(storage_command=_lazy(command.module))


def run(args: argparse.Namespace) -> int:
    """Run the chosen command; returns the exit status."""
    return args.storage_command(args)


def _verify_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--remove", action="store_true", help="delete the bad pages")
    parser.add_argument("--quiet", action="store_true", help="no progress")


def _prune_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--older-than", metavar="AGE", type=duration, help="pages not used for AGE: 90s, 30m, 12h or 7d")
    parser.add_argument(
        "--max-bytes", metavar="SIZE", type=size, help="until the rest fits into SIZE bytes (10GiB), least recently used first"
    )
    parser.add_argument("--model", metavar="ID", help="only pages of this model, as `inspect` writes it")
    parser.add_argument("--dry-run", action="store_true", help="say what would be removed, and remove nothing")


def _no_arguments(parser: argparse.ArgumentParser) -> None:
    del parser


_ARGUMENTS: Final = {
    "inspect": _no_arguments,
    "verify": _verify_arguments,
    "prune": _prune_arguments,
    "check": _no_arguments,
}


def _lazy(module: str) -> Callable[[argparse.Namespace], int]:
    return lambda args: importlib.import_module(f"{PACKAGE}.{module}").run(args)


def _helper(parser: argparse.ArgumentParser) -> Callable[[argparse.Namespace], int]:
    """`kvcache storage` alone is a question about what it can do."""

    def show(_: argparse.Namespace) -> int:
        parser.print_help()
        return 0

    return show
