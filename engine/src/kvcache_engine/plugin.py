"""What kvcache-engine tells the core: the commands `run` and `sweep`, and the section `engine` of a file. Imports no jax."""

from kvcache_core.registry.descriptors import CommandDescriptor
from kvcache_core.registry.hookspecs import hookimpl


@hookimpl
def kvcache_commands() -> list[CommandDescriptor]:
    return [
        CommandDescriptor(
            name="run",
            summary="serve a prompts file with a real model through the cache that a configuration names",
            configure="kvcache_engine.cli:configure",
            run="kvcache_engine.cli:run",
            section="engine",
            section_model="kvcache_engine.config:EngineConfig",
        ),
        CommandDescriptor(
            name="sweep",
            summary="serve a prompts file with host memory (L2) of several sizes: hit rate and time to first token over the size",
            configure="kvcache_engine.sweep_cli:configure",
            run="kvcache_engine.sweep_cli:run",
        ),
    ]
