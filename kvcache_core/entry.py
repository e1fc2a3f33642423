"""The console script `kvcache`: Ctrl-C ends it cleanly even while the command line is still being imported."""

import sys


def main() -> int:
    """Run this process's command line; returns the exit status."""
    try:
        # Here, so that an interrupt during these imports is caught as well.
        from kvcache_core.cli import main as run

        return run()
    except KeyboardInterrupt:
        print("kvcache: interrupted", file=sys.stderr)
        return 130
