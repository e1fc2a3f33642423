"""`python -m kvcache_core` is `kvcache`, for environments whose scripts are not on the path."""

import sys

from kvcache_core.entry import main

if __name__ == "__main__":
    sys.exit(main())
