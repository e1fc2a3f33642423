"""What kvcache-component-swa tells the core."""

from kvcache_core.registry.descriptors import TreeComponentDescriptor
from kvcache_core.registry.hookspecs import hookimpl


@hookimpl
def kvcache_tree_components() -> list[TreeComponentDescriptor]:
    return [
        TreeComponentDescriptor(
            name="swa",
            summary="sliding-window attention: only the last window of a prefix is needed",
            factory="kvcache_component_swa.component:make",
        )
    ]
