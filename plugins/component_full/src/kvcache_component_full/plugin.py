"""What kvcache-component-full tells the core."""

from kvcache_core.registry.descriptors import TreeComponentDescriptor
from kvcache_core.registry.hookspecs import hookimpl


@hookimpl
def kvcache_tree_components() -> list[TreeComponentDescriptor]:
    return [
        TreeComponentDescriptor(
            name="full",
            summary="full attention (MHA, GQA, MLA): every position of a prefix is needed",
            factory="kvcache_component_full.component:make",
        )
    ]
