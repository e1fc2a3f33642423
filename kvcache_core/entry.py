"""The console script `kvcache`: it answers `--version`, Ctrl-C and broken packages even while the rest cannot be imported yet."""

import sys

import kvcache_core
from kvcache_core.standard_output import NO_ROOM, flush_output, give_up_output


def main() -> int:
    """Run this process's command line; returns the exit status."""
    try:
        # Asked when nothing else works, so it needs none of the imports below.
        return _version() if sys.argv[1:] == ["--version"] else _run()
    except KeyboardInterrupt:
        sys.stderr.write("kvcache: interrupted\n")
        return 130


def _version() -> int:
    try:
        sys.stdout.write(f"kvcache {kvcache_core.__version__}\n")
        flush_output()
    except OSError as error:
        if not isinstance(error, BrokenPipeError) and error.errno not in NO_ROOM:
            raise
        return give_up_output(error)
    return 0


def _run() -> int:
    try:
        # Here, so that an interrupt during these imports is caught as well.
        from kvcache_core.cli import main as run
    except Exception:
        # pydantic reads the entry points of all packages while it is imported, and one unreadable file of a stranger's ends that.
        from kvcache_core.registry.unreadable import unreadable_packages

        broken = unreadable_packages()
        if not broken:
            raise
        sys.stderr.write(f"kvcache: error: {'; '.join(broken)}\n")
        return 2
    return run()
