"""Puts kvcache into an unmodified sgl-jax: one call, before its engine or server is made.

sgl-jax's scheduler makes its cache by calling one function that it has imported by name; that name is bound anew. sgl-jax
starts its scheduler in a process of its own unless told otherwise, and such a process imports the program's main module again:
the call therefore stands at the top level of that module, not under `if __name__ == "__main__"`.
"""

from collections.abc import Sequence
from pathlib import Path

from kvcache_core.config.load import load_config
from kvcache_core.config.sources import Override


def install(config: str | Path | None = None, overrides: Sequence[Override] = ()) -> None:
    """Let every scheduler that this process makes from now on use the cache that `config` (a file) and `overrides` (flags) ask
    for; without either, the default for full attention. Imports sgl-jax and jax.

    Raises:
        InvalidConfigError: everything that is wrong with the configuration, each with its place.
        ImportError: sgl-jax is not installed here.
    """
    loaded = load_config(config, overrides)
    from sgl_jax.srt.managers import scheduler  # pyright: ignore[reportMissingImports]

    from kvcache_sgl_jax.build import CacheBuilder

    scheduler.build_kv_cache = CacheBuilder(loaded)
