"""What lies between the cache and a storage backend: page keys, the page frame and the guard. Imports no jax."""
