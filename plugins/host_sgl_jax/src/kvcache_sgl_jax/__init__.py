"""The prefix caches of kvcache in an unmodified sgl-jax; `kvcache_sgl_jax.install` is where to begin."""
