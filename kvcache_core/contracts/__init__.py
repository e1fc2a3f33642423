"""The contracts between host, cache, components, storage and pools. No jax, no plugin, no behaviour beyond checks."""
