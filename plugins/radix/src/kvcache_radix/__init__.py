"""A radix tree over token prefixes (`kvcache_radix.tree`) and the device-only prefix cache on it (`kvcache_radix.cache`)."""
