"""A storage backend that would never be used is refused at start, not ignored."""

from types import SimpleNamespace

import pytest

from kvcache_core.config.model import CacheConfig, HiCacheConfig
from kvcache_core.errors import ConfigError
from kvcache_unified_hicache.cache import make


def test_storage_is_refused_and_the_field_is_named():
    hicache = HiCacheConfig.model_construct(storage=SimpleNamespace(kind="file"))
    config = CacheConfig.model_construct(page_size=16, hicache=hicache)
    with pytest.raises(ConfigError, match=r"no storage tier.*'storage: file'.*set storage: none") as info:
        make(config, None)  # type: ignore[arg-type]  # nothing is looked at before the refusal
    assert info.value.path == ("hicache", "storage")
