"""What kvcache-conformance tells the core: the command `conformance`. It imports neither pytest nor the kit."""

from kvcache_core.registry.descriptors import CommandDescriptor
from kvcache_core.registry.hookspecs import hookimpl


@hookimpl
def kvcache_commands() -> list[CommandDescriptor]:
    return [
        CommandDescriptor(
            name="conformance",
            summary="run the conformance kit on an installed plugin",
            configure="kvcache_conformance.cli:configure",
            run="kvcache_conformance.cli:run",
        )
    ]
