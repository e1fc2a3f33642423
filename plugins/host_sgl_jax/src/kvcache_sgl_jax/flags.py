"""Our flags beside sgl-jax's on one command line. Imports neither jax nor sgl-jax.

sgl-jax has flags called `--hicache-*` and `--disaggregation-mode` of its own; ours are the same names after `--kvcache-`.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from kvcache_core.config.flags import add_cache_flags, overrides_from_args
from kvcache_core.config.sources import Override

PREFIX = "--kvcache-"


class CommandLine(NamedTuple):
    """`rest` is sgl-jax's part, in its order."""

    config: Path | None
    overrides: tuple[Override, ...]
    rest: list[str]


def read_command_line(arguments: Sequence[str]) -> CommandLine:
    """Take our flags out of `arguments` (without the program's name); an unknown flag of ours ends the program, as argparse does.

    Flags are not validated here: `install` reports a wrong flag and a wrong line of the file together.
    """
    parser = argparse.ArgumentParser(prog="python -m kvcache_sgl_jax", add_help=False, allow_abbrev=False)
    parser.add_argument(f"{PREFIX}config", type=Path, metavar="FILE", help="kvcache's configuration file")
    parser.add_argument(f"{PREFIX}help", action="help", help="show these flags; --help shows sgl-jax's")
    add_cache_flags(parser, prefix=PREFIX)
    ours, rest = parser.parse_known_args(list(arguments))
    unknown = [argument for argument in rest if argument.startswith(PREFIX)]
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    return CommandLine(ours.kvcache_config, overrides_from_args(ours), rest)
