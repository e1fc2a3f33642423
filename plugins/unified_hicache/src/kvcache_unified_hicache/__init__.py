"""A prefix cache over device memory, pinned host memory and storage (`kvcache_unified_hicache.cache`)."""
