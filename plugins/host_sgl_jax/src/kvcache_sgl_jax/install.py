"""Puts kvcache into an unmodified sgl-jax: one call, before its engine or server is made.

sgl-jax's scheduler makes its cache by calling one function that it has imported by name, and its engine starts that scheduler
in a process of its own unless told otherwise. Both names are bound anew: the first to our builder, the second to a function
that does the same in the new process, which knows nothing of what was done in this one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from kvcache_core.config.load import load_config
from kvcache_core.config.sources import Override


def install(config: str | Path | None = None, overrides: Sequence[Override] = ()) -> None:
    """Let every scheduler that is made from now on use the cache that `config` (a file) and `overrides` (flags) ask for; without
    either, the default for full attention. Imports sgl-jax and jax.

    Raises:
        InvalidConfigError: everything that is wrong with the configuration, each with its place.
        ImportError: sgl-jax is not installed here.
    """
    loaded = load_config(config, overrides)
    from sgl_jax.srt.entrypoints import engine  # pyright: ignore[reportMissingImports]
    from sgl_jax.srt.managers import scheduler  # pyright: ignore[reportMissingImports]

    from kvcache_sgl_jax.build import CacheBuilder

    scheduler.build_kv_cache = CacheBuilder(loaded)
    engine.run_scheduler_process = SchedulerProcess.of(config, overrides)


@dataclass(frozen=True, slots=True)
class SchedulerProcess:
    """What a new process runs instead of sgl-jax's `run_scheduler_process`. It travels there pickled, so it holds no cache."""

    config: str | None
    overrides: tuple[Override, ...]

    @classmethod
    def of(cls, config: str | Path | None, overrides: Sequence[Override]) -> Self:
        """For the arguments of `install`: a path that means the same in every folder, and nothing that cannot be pickled."""
        plain = tuple(replace(each, by_kind=None if each.by_kind is None else dict(each.by_kind)) for each in overrides)
        return cls(None if config is None else str(Path(config).resolve()), plain)

    def __call__(self, *arguments: Any) -> None:
        install(self.config, self.overrides)
        from sgl_jax.srt.managers import scheduler  # pyright: ignore[reportMissingImports]

        scheduler.run_scheduler_process(*arguments)
