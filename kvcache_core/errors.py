"""Every error the core raises on purpose. All derive from `KVCacheError`, so a host can catch one type at start."""


class KVCacheError(Exception):
    """Base of all deliberate errors. Its text says what is wrong and what to do about it."""


class ConfigError(KVCacheError):
    """A configuration that cannot work: unknown, contradictory or unserved by what is installed. Raised before anything is built."""


class PluginError(KVCacheError):
    """A plugin that was asked for and is missing or broken. The text names its distribution, version, stage and exception."""


class DuplicateNameError(PluginError):
    """Two providers offer the same name. Both are named; neither is used."""


class LockError(KVCacheError):
    """A lock was released twice, released before it was taken, or belongs to another cache."""


class DoubleFreeError(KVCacheError):
    """An index was freed that is already free, or that the allocator never gave out. Nothing was freed."""


class IntegrityError(KVCacheError):
    """`check_integrity` found a broken invariant: a bug in this project or in a plugin, never in the user's input."""
