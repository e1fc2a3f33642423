"""The command `kvcache conformance storage NAME`: the kit on an installed storage backend, and a verdict that people can read."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from kvcache_conformance.storage_verdict import PART_NAMES
from kvcache_core.errors import KVCacheError

DESCRIPTION = """Run the conformance kit on an installed storage backend, in temporary folders, with pytest in a process of
its own. It needs no cache and no model."""

EPILOG = """{place} in the value of an option stands for a folder that is new for each test. An option with the flag
--hicache-storage-path gets a path there by itself. Without {place} all tests work in the one store that the options name, next to
whatever is in it, and no limit is tried on it; pages of a few megabytes stay there, under model ids such as `conformance`.

examples:
  kvcache conformance storage file
  kvcache conformance storage file --options durability=page workers=1
  kvcache conformance storage file --options path={place}/deep/down --parts capacity --json

exit status: 0 it conforms; 1 a test failed, hung or crashed; 2 there is no such backend, or its options are wrong."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the sub-command `storage` and its arguments."""
    kinds = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    summary = "run the kit for storage backends; exit status 1 if a test fails"
    storage = kinds.add_parser("storage", help=summary, allow_abbrev=False)
    storage.description, storage.epilog = DESCRIPTION, EPILOG
    storage.formatter_class = argparse.RawDescriptionHelpFormatter
    storage.add_argument("name", metavar="NAME", help="what stands behind `kind:` in a configuration file")
    storage.add_argument(
        "--options",
        metavar="KEY=VALUE",
        nargs="+",
        action="extend",
        default=[],
        help="options of the backend, as beside `kind:`; values are read as YAML",
    )
    storage.add_argument(
        "--parts",
        metavar="PART",
        nargs="+",
        choices=PART_NAMES,
        default=list(PART_NAMES),
        help=f"run these parts only, of: {', '.join(PART_NAMES)}",
    )
    storage.add_argument(
        "--timeout", metavar="SECONDS", type=_duration, default=120.0, help="how long one test may take (default: 120)"
    )
    storage.add_argument("--json", action="store_true", help="print JSON, for programs; with tracebacks")


def run(args: argparse.Namespace) -> int:
    """Run the kit; returns the exit status."""
    # Here, so that `kvcache conformance storage --help` answers at once.
    from kvcache_conformance.storage_choice import choose_storage
    from kvcache_conformance.storage_run import run_storage_kit

    chosen = choose_storage(args.name, _pairs(args.options))
    with TemporaryDirectory(prefix="kvcache-conformance-", ignore_cleanup_errors=True) as folder:
        verdict = run_storage_kit(chosen, args.parts, Path(folder), args.timeout)
    print(json.dumps(verdict.as_dict(), indent=2, ensure_ascii=False) if args.json else verdict.render())
    return 0 if verdict.ok else 1


def _pairs(words: Sequence[str]) -> list[tuple[str, str]]:
    pairs = [word.partition("=") for word in words]
    wrong = [key for key, equals, _ in pairs if not equals or not key]
    if wrong:
        raise KVCacheError(f"--options takes KEY=VALUE, not {wrong[0]!r}")
    return [(key, value) for key, _, value in pairs]


def _duration(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number of seconds, not {text!r}") from None
    if not 0 < seconds < 86_400:
        raise argparse.ArgumentTypeError("must be between 0 and a day")
    return seconds
