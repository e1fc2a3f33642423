"""What the package tells the core, and what it refuses to build."""

import subprocess
import sys
from importlib.metadata import entry_points

import pytest

from kvcache_core.contracts.model_spec import ComponentSpec, ModelSpec
from kvcache_core.deps import CacheDeps
from kvcache_core.errors import ConfigError
from kvcache_core.transfer_queue import TransferQueue
from kvcache_radix.cache import make
from kvcache_radix.plugin import kvcache_cache_types


class NoBuffers:
    """RadixCache moves nothing, so it never takes the pools."""

    def take(self):
        raise AssertionError

    def give(self, buffers):
        raise AssertionError


def deps(pools, *components):
    model = ModelSpec("tiny", "1", "full_attention", tuple(ComponentSpec(name) for name in components))
    return CacheDeps(model=model, page_size=4, allocators=pools, pools={}, pool_set=NoBuffers(), queue=TransferQueue({}))


def test_the_entry_point_describes_radix_cache():
    (entry,) = [entry for entry in entry_points(group="kvcache.v1") if entry.name == "radix"]
    (descriptor,) = entry.load().kvcache_cache_types()
    assert descriptor == kvcache_cache_types()[0]
    assert (descriptor.name, descriptor.components, descriptor.tiers) == ("radix_cache", frozenset({"full"}), False)
    assert not descriptor.needs_components
    assert descriptor.factory == f"{make.__module__}:{make.__name__}"


def test_the_factory_builds_a_working_cache(make_parts, tokens):
    cache = make(None, deps(make_parts("F").pools, "full"))
    assert cache.match_prefix(tokens(range(8))).device_len == 0
    assert cache.size("full").free == 64
    assert cache.poll() == 0
    cache.close()


def test_a_model_with_other_components_is_refused(make_parts):
    with pytest.raises(ConfigError, match=r"full, swa.*unified_radix_cache"):
        make(None, deps(make_parts("FS").pools, "full", "swa"))


def test_the_plugin_module_is_light():
    code = (
        "import sys, kvcache_radix.plugin; print(sorted({'jax', 'kvcache_radix.tree', 'kvcache_radix.cache'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_no_module_imports_jax():
    code = "import sys, kvcache_radix.cache, kvcache_radix.integrity; print('jax' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
