"""`python -m kvcache_sgl_jax`: sgl-jax's server with a cache of ours; takes its flags, and ours after `--kvcache-`."""

import os
import sys

from kvcache_core.config.load import load_config
from kvcache_core.errors import KVCacheError
from kvcache_sgl_jax.flags import read_command_line
from kvcache_sgl_jax.host_settings import check_before_start
from kvcache_sgl_jax.install import install


def main() -> int:
    """Run the server until it is told to end; returns the exit status, 2 for a wrong configuration."""
    line = read_command_line(sys.argv[1:])
    try:
        loaded = load_config(line.config, line.overrides)
        install(line.config, line.overrides)
        from sgl_jax.srt.entrypoints import http_server  # pyright: ignore[reportMissingImports]
        from sgl_jax.srt.server_args import ServerArgs  # pyright: ignore[reportMissingImports]
        from sgl_jax.srt.utils import kill_process_tree  # pyright: ignore[reportMissingImports]

        arguments = ServerArgs.from_cli(line.rest)
        check_before_start(loaded, arguments)
    except KVCacheError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    try:
        http_server.launch(arguments)
    finally:
        kill_process_tree(os.getpid(), include_parent=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
