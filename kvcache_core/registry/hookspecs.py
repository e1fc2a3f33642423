"""The five hooks a plugin module may implement. Each takes nothing and returns a list of frozen descriptors.

A plugin is a light module named by an entry point in the group `kvcache.v1`; it must not import jax or its own implementation.
"""

import pluggy

from kvcache_core.registry.descriptors import (
    CacheTypeDescriptor,
    CommandDescriptor,
    ObserverDescriptor,
    StorageBackendDescriptor,
    TreeComponentDescriptor,
)

PROJECT = "kvcache"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


class HookSpecs:
    """Implement any of these as a module-level function marked with `hookimpl`."""

    @hookspec
    def kvcache_cache_types(self) -> list[CacheTypeDescriptor]:
        """Offer values of `cache_type`.

        Example::

            from kvcache_core.registry.descriptors import CacheTypeDescriptor
            from kvcache_core.registry.hookspecs import hookimpl


            @hookimpl
            def kvcache_cache_types():
                return [CacheTypeDescriptor(name="my_cache", summary="one line", factory="my_package.cache:make")]
        """
        raise AssertionError("specification only")

    @hookspec
    def kvcache_tree_components(self) -> list[TreeComponentDescriptor]:
        """Offer TreeComponents, by the name hosts use for their pools.

        Example::

            @hookimpl
            def kvcache_tree_components():
                return [TreeComponentDescriptor(name="full", summary="one line", factory="my_package.full:make")]
        """
        raise AssertionError("specification only")

    @hookspec
    def kvcache_storage_backends(self) -> list[StorageBackendDescriptor]:
        """Offer values of `hicache.storage.kind`.

        Example::

            class Options(PluginOptions):
                path: str


            @hookimpl
            def kvcache_storage_backends():
                factory = "my_package.store:open_store"
                return [StorageBackendDescriptor(name="mine", summary="one line", factory=factory, options=Options)]
        """
        raise AssertionError("specification only")

    @hookspec
    def kvcache_commands(self) -> list[CommandDescriptor]:
        """Offer sub-commands of `kvcache`, and the section of the configuration file that they read.

        Example::

            @hookimpl
            def kvcache_commands():
                configure, run = "my_package.cli:configure", "my_package.cli:run"
                return [CommandDescriptor(name="hello", summary="say hello", configure=configure, run=run)]
        """
        raise AssertionError("specification only")

    @hookspec
    def kvcache_observers(self) -> list[ObserverDescriptor]:
        """Offer observers of cache events, called on the owner thread.

        Example::

            @hookimpl
            def kvcache_observers():
                return [ObserverDescriptor(name="log", summary="one line", factory="my_package.observer:LogObserver")]
        """
        raise AssertionError("specification only")
