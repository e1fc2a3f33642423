"""The core of kvcache: contracts, configuration, plugin discovery and one builder. It knows no cache type and no jax."""

__version__ = "0.1.0"
