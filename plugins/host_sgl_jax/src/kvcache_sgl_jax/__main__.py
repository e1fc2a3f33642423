"""`python -m kvcache_sgl_jax`: sgl-jax's server with a cache of ours; takes its flags, and ours after `--kvcache-`.

sgl-jax runs its scheduler in a process that imports this module again, under another name: that is why the cache is installed
at the top level, and why `sys.argv` is left as it is.
"""

import os
import sys

from kvcache_core.errors import KVCacheError
from kvcache_sgl_jax.flags import read_command_line
from kvcache_sgl_jax.install import install


def main(arguments: list[str]) -> None:
    """Run the server until it is told to end. `arguments`: sgl-jax's."""
    from sgl_jax.srt.entrypoints import http_server  # pyright: ignore[reportMissingImports]
    from sgl_jax.srt.server_args import ServerArgs  # pyright: ignore[reportMissingImports]
    from sgl_jax.srt.utils import kill_process_tree  # pyright: ignore[reportMissingImports]

    try:
        http_server.launch(ServerArgs.from_cli(arguments))
    finally:
        kill_process_tree(os.getpid(), include_parent=False)


line = read_command_line(sys.argv[1:])
try:
    install(line.config, line.overrides)
except KVCacheError as error:
    sys.stderr.write(f"{error}\n")
    sys.exit(2)

if __name__ == "__main__":
    main(line.rest)
