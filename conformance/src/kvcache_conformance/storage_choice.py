"""Which installed backend is judged, and with which options. Names and options are checked as those of a configuration are."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import gettempdir
from typing import Any

from kvcache_core.config.load import load_config
from kvcache_core.config.located import parse_value
from kvcache_core.config.sources import STORAGE, Override
from kvcache_core.errors import KVCacheError
from kvcache_core.registry.default import default_registry
from kvcache_core.registry.known import Kind
from kvcache_core.registry.registry import Registry

PLACE = "{place}"
PATH_FLAG = "--hicache-storage-path"


@dataclass(frozen=True, slots=True)
class ChosenStorage:
    """`options` still have PLACE where a test's folder goes. `provider`: distribution and version."""

    kind: str
    provider: str
    capabilities: frozenset[str]
    options: Mapping[str, Any]

    @property
    def has_places(self) -> bool:
        """Whether every test has a store of its own."""
        return any(isinstance(value, str) and PLACE in value for value in self.options.values())


def options_in(options: Mapping[str, Any], place: Path) -> dict[str, Any]:
    """The options for a store in the folder `place`."""
    return {key: value.replace(PLACE, str(place)) if isinstance(value, str) else value for key, value in options.items()}


def choose_storage(kind: str, pairs: Sequence[tuple[str, str]], registry: Registry | None = None) -> ChosenStorage:
    """Look up the backend and check its options, pairs of a name and YAML.

    Raises:
        InvalidConfigError, PluginError: no such backend, a broken one, or options it does not have or that are wrong.
        KVCacheError: an option is called `kind`.
    """
    registry = default_registry() if registry is None else registry
    descriptor, source = (offer := registry.storage(kind)).descriptor, offer.source
    if any(key == "kind" for key, _ in pairs):
        raise KVCacheError(f"--options cannot set 'kind': it is {kind!r}, as named")
    given = dict(pairs)
    for field, flag in descriptor.flags:
        if flag == PATH_FLAG:
            given.setdefault(field, f"{PLACE}/storage")
    # Read as it stands: braces would be a mapping to YAML.
    options = {
        key: text if PLACE in text else parse_value(text, f"--options {key}", (*STORAGE, key)) for key, text in given.items()
    }
    overrides = [Override(STORAGE, kind, f"{Kind.STORAGE} {kind}", is_yaml=False)]
    overrides += [
        Override((*STORAGE, key), text.replace(PLACE, gettempdir()), f"--options {key}", is_yaml=PLACE not in text)
        for key, text in given.items()
    ]
    load_config(None, overrides, registry)
    return ChosenStorage(kind, source.owner, descriptor.capabilities, options)
