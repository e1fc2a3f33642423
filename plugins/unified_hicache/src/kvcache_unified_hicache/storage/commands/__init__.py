"""`kvcache storage inspect | verify | prune | check`: a storage by hand, without an engine. Imports no jax."""
