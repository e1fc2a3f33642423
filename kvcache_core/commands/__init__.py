"""The built-in commands of `kvcache`, one module a group."""
