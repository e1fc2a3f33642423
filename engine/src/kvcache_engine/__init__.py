"""A small JAX inference engine: the reference host of kvcache. It shows how a scheduler uses a prefix cache, and serves real models."""
