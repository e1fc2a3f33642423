"""A small JAX inference engine: the reference host of kvcache. It serves real models."""
