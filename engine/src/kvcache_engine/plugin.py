"""What kvcache-engine tells the core: the command `run` and the section `engine` of a configuration file. Imports no jax."""

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
        )
    ]
