"""What a command line asks the engine to do: the configuration with its `engine:` section, and the prompts to serve.

Imports no jax, so that everything that is wrong with them is said in a moment.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from kvcache_core.config.flags import config_from_args
from kvcache_core.config.load import LoadedConfig
from kvcache_core.config.model import CacheConfig
from kvcache_core.config.resolve import resolve, usual_model
from kvcache_core.errors import ConfigError, KVCacheError
from kvcache_core.registry.default import default_registry
from kvcache_engine.config import EngineConfig
from kvcache_engine.prompts_file import PromptLine, read_prompts

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Job:
    """A validated command line."""

    loaded: LoadedConfig
    engine: EngineConfig
    lines: Sequence[PromptLine]

    def check_cache(self, variants: Sequence[CacheConfig] = ()) -> None:
        """Find out in a moment that a cache is not installed, for the configuration or for one of `variants` of it; the model,
        once it is loaded, has the last word.

        Raises ConfigError or PluginError.
        """
        for config in variants or (self.loaded.config,):
            resolve(config, usual_model(config.model_class), default_registry())

    def located(self, work: Callable[[], R]) -> R:
        """Do `work`; an error that names a field is raised with the place where the field was given."""
        try:
            return work()
        except KVCacheError as error:
            located = self.loaded.located(error)
            if located is error:
                raise
            raise located from error


def job_from_args(args: argparse.Namespace, command: str) -> Job:
    """Read `args.config`, the cache flags and `args.prompts`.

    Raises:
        ConfigError, EngineError: what is wrong with them.
    """
    loaded = config_from_args(args, args.config)
    section = loaded.sections.get("engine")
    if section is None:
        raise ConfigError(f"{args.config}: `kvcache {command}` needs a section `engine:` with at least `model:`")
    # Validated by the loader with the model that our own descriptor names.
    engine = EngineConfig.model_validate(section.model_dump())
    return Job(loaded, engine, read_prompts(_prompts_path(args.prompts, engine, loaded.folder)))


def add_job_arguments(parser: Any) -> None:
    """The arguments that `job_from_args` reads, except the cache flags."""
    parser.add_argument("config", metavar="CONFIG", help="configuration file with an `engine:` section")
    parser.add_argument("--prompts", metavar="FILE", help="prompts file; replaces engine.prompts")


def _prompts_path(given: str | None, engine: EngineConfig, folder: Path) -> Path:
    if given is not None:
        return Path(given)
    if engine.prompts is None:
        raise ConfigError("there is nothing to serve: give --prompts FILE, or engine.prompts in the configuration file")
    return folder / Path(engine.prompts).expanduser()
