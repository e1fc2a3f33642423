"""What kvcache-component-recurrent tells the core."""

from kvcache_core.registry.descriptors import TreeComponentDescriptor
from kvcache_core.registry.hookspecs import hookimpl


@hookimpl
def kvcache_tree_components() -> list[TreeComponentDescriptor]:
    return [
        TreeComponentDescriptor(
            name="recurrent",
            summary="recurrent states (linear attention, SSM): only the state at the end of a prefix is needed",
            factory="kvcache_component_recurrent.component:make",
        )
    ]
