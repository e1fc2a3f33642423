"""What sgl-jax's own settings say to our configuration: the page size, the model's name, and what cannot be served with them.

It reads the settings by their names and imports neither sgl-jax nor jax, so it can answer before anything is started.
"""

from typing import Any

from kvcache_core.config.load import LoadedConfig
from kvcache_core.config.model import CacheConfig
from kvcache_core.config.resolve import resolve
from kvcache_core.contracts.model_spec import ModelSpec
from kvcache_core.errors import ConfigError, KVCacheError
from kvcache_core.registry.default import default_registry
from kvcache_sgl_jax.refusals import HostShape, refuse_what_cannot_be_served


def config_for_page_size(loaded: LoadedConfig, page_size: int) -> CacheConfig:
    """The configuration with the host's page size, which need not be repeated in it. Raises ConfigError if it is, wrongly."""
    config = loaded.config
    if loaded.sources.gives(("page_size",)) and config.page_size != page_size:
        raise ConfigError(
            f"page_size is {config.page_size}, but sgl-jax was started with --page-size {page_size}; leave it out",
            path=("page_size",),
        )
    return config.model_copy(update={"page_size": page_size})


def model_of(server_args: Any) -> ModelSpec:
    """The model under the name it is served by. `server_args`: sgl-jax's."""
    return ModelSpec(
        model_id=server_args.served_model_name or server_args.model_path,
        model_version=server_args.revision or "",
        model_class="full_attention",
    )


def check_before_start(loaded: LoadedConfig, server_args: Any) -> None:
    """All that can be told without the model and its pools; the scheduler's `CacheBuilder` looks at the rest, and at this again.

    Raises ConfigError for what cannot be served and PluginError for missing parts, each with its place where a field decided.
    """
    shape = HostShape(
        windows=False,
        recurrent_states=False,
        speculative=server_args.speculative_algorithm is not None,
        one_buffer_a_layer=True,
    )
    try:
        config = config_for_page_size(loaded, server_args.page_size)
        refuse_what_cannot_be_served(server_args, shape, config)
        resolve(config, model_of(server_args), default_registry())
    except KVCacheError as error:
        raise loaded.located(error) from error
