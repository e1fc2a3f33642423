"""Every error the core raises on purpose. All derive from `KVCacheError`, so a host can catch one type at start."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvcache_core.config.problems import Problem


def did_you_mean(suggestion: str | None) -> str:
    """How a suggestion is shown, behind what is wrong."""
    return f" (did you mean '{suggestion}'?)" if suggestion else ""


class KVCacheError(Exception):
    """Base of all deliberate errors. Its text says what is wrong and what to do about it.

    `path` names the configuration field that decided, such as `("hicache", "storage")`, where there is one: whoever knows the
    file can then point at it. `suggestion`: the name that was probably meant; `message` is the text without it.

    What to do: read the text; it names the field, the plugin or the file.
    """

    def __init__(self, message: str = "", *, path: tuple[str | int, ...] = (), suggestion: str | None = None) -> None:
        super().__init__(message + did_you_mean(suggestion))
        self.message = message
        self.path = path
        self.suggestion = suggestion


class ConfigError(KVCacheError):
    """A configuration that cannot work: unknown, contradictory or unserved by what is installed. Raised before any building.

    What to do: change the field it names, or install what it names; `kvcache config explain` shows how the decision went.
    """


class InvalidConfigError(ConfigError):
    """A configuration with problems, all of them at once. The text shows each with its place; `problems` is for programs.

    What to do: go through the places; `kvcache config validate FILE` shows what is left.
    """

    def __init__(self, problems: tuple["Problem", ...]) -> None:
        super().__init__("\n".join(problem.render() for problem in problems))
        self.problems = problems


class PluginError(KVCacheError):
    """A plugin that was asked for and is missing or broken. The text names its distribution, version, stage and exception.

    What to do: repair, upgrade or uninstall the distribution it names; `kvcache plugins doctor` checks all of them.
    """


class MissingPluginError(PluginError):
    """Nothing installed provides the name. The text has the pip command when the name is one of ours.

    What to do: run that command, or choose one of the installed names in the text.
    """


class DuplicateNameError(PluginError):
    """Two providers offer the same name. Both are named; neither is used.

    What to do: uninstall one of them, or register the host's type under another name.
    """


class StorageError(KVCacheError):
    """A storage backend that was configured does not work: it cannot be opened, or its start-up self-test failed. Only raised
    at start; at run time a failing storage is a counted miss.

    What to do: look at the path, address or credentials it names; `kvcache storage check CONFIG` repeats the self-test.
    """


class LockError(KVCacheError):
    """A lock was released twice, released before it was taken, or belongs to another cache. Nothing was released.

    What to do: this is a bug in the host; every lock ends by exactly one `unlock_ref` or `cancel`.
    """


class DoubleFreeError(KVCacheError):
    """An index was freed that is already free, or that the allocator never gave out. Nothing was freed.

    What to do: this is a bug in the host or the cache; `check_integrity(request_owned)` finds who owns an index twice.
    """


class IntegrityError(KVCacheError):
    """`check_integrity` found a broken invariant: a bug in this project or in a plugin, never in the user's input.

    What to do: report it with the text, which names the invariant; `reset()` or a restart gives a clean cache.
    """
