"""Where values come from: flags over the file over defaults, nothing ambient. Merges raw data and remembers every origin.

It knows two things about the shape: `hicache.storage` may be written as a bare kind, and the options of one kind mean nothing to
another. What is valid is decided later.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, cast

from kvcache_core.config.located import LocatedDocument, parse_value
from kvcache_core.config.problems import Loc, Place, Problem
from kvcache_core.config.secrets import redacted
from kvcache_core.errors import InvalidConfigError

STORAGE: Loc = ("hicache", "storage")


@dataclass(frozen=True, slots=True)
class Override:
    """A value given on the command line. `text` is read as YAML if `is_yaml`, else taken as it is.

    `by_kind`: for a flag that storage plugins own, the option it means to each kind; `loc` is the slot then.
    """

    loc: Loc
    text: str = field(repr=False)
    flag: str
    is_yaml: bool = True
    by_kind: Mapping[str, str] | None = None


class ConfigSources:
    """The merged raw data of one configuration. `data` is a copy; neither the document nor a caller's mapping is changed."""

    def __init__(
        self, base: Mapping[str, Any], document: LocatedDocument | None = None, overrides: Sequence[Override] = (), name: str = ""
    ) -> None:
        """`name` stands for the place of values that came with `base` but from no document.

        `problems`: flags whose value is not YAML, that set something inside a value that is no mapping, or that the chosen
        storage backend does not have. They are fatal, but leave the data as it was, so a reader goes on and finds the rest.
        """
        self.data: dict[str, Any] = deepcopy(dict(base))
        self.document = document
        self._name = name
        self._flags: dict[Loc, str] = {}
        problems: list[Problem] = []
        # The kind first: which option a plugin's own flag means depends on it, wherever it stands on the command line.
        for override in sorted(overrides, key=lambda o: o.by_kind is not None):
            try:
                self._apply(override)
            except InvalidConfigError as error:
                problems += error.problems
        self.problems = tuple(problems)

    def place(self, loc: Loc, *, key: bool = False) -> Place | None:
        """Where the value at `loc` was given, or, where nobody gave it, what should have contained it."""
        flag = self._flag(loc)
        if flag is not None:
            return Place(flag)
        if self.document is not None and self.document.has(loc):
            return self.document.place(loc, key=key)
        below = [flag for given, flag in self._flags.items() if given[: len(loc)] == loc] if loc else []
        if below:
            return Place(below[-1])
        if self.document is not None:
            return self.document.place(loc, key=key)
        return Place(self._name) if self._name else None

    def origin(self, loc: Loc) -> str:
        """The flag, `file:line:col`, or "default"."""
        flag = self._flag(loc)
        if flag is not None:
            return flag
        if self.document is not None and self.document.has(loc):
            return str(self.document.place(loc))
        return "default"

    def gives(self, loc: Loc) -> bool:
        """Whether the document or a flag gave the value at `loc`, or something inside it."""
        inside = any(given[: len(loc)] == loc for given in self._flags)
        return inside or self._flag(loc) is not None or (self.document is not None and self.document.has(loc))

    def _flag(self, loc: Loc) -> str | None:
        for cut in range(len(loc), 0, -1):
            if loc[:cut] in self._flags:
                return self._flags[loc[:cut]]
        return None

    def _apply(self, override: Override) -> None:
        loc = override.loc if override.by_kind is None else self._option_of_kind(override, override.by_kind)
        value: Any = parse_value(override.text, override.flag, loc) if override.is_yaml else override.text
        if loc == (*STORAGE, "kind"):
            loc = STORAGE
        *above, last = loc
        node = self.data
        for depth, part in enumerate(above):
            node = self._descend(node, part, tuple(above[: depth + 1]), override)
        new = _with_kind(node.get(str(last)), value) if loc == STORAGE and isinstance(value, str) else value
        node[str(last)] = new
        if new is value:
            # What an earlier flag set inside the old value is gone with it.
            self._flags = {given: flag for given, flag in self._flags.items() if given[: len(loc)] != loc}
        self._flags[loc] = override.flag

    def _descend(self, node: dict[str, Any], part: str | int, loc: Loc, override: Override) -> dict[str, Any]:
        child = node.get(str(part))
        if child is None:
            child = {}
        elif loc == STORAGE and isinstance(child, str):
            child = {"kind": child}
        elif not isinstance(child, dict):
            raise _invalid(override, f"cannot be set: {'.'.join(map(str, loc))} is {redacted(repr(child))}, not a mapping")
        node[str(part)] = child
        return cast(dict[str, Any], child)

    def _option_of_kind(self, override: Override, by_kind: Mapping[str, str]) -> Loc:
        hicache = self.data.get("hicache")
        slot: Any = cast(dict[str, Any], hicache).get("storage") if isinstance(hicache, dict) else None
        kind: Any = cast(dict[str, Any], slot).get("kind") if isinstance(slot, dict) else slot
        if not isinstance(kind, str) or kind == "none":
            raise _invalid(override, f"needs a storage backend; add --hicache-storage with one of: {', '.join(sorted(by_kind))}")
        if kind not in by_kind:
            raise _invalid(override, f"storage backend '{kind}' has no such option; it belongs to: {', '.join(sorted(by_kind))}")
        return (*STORAGE, by_kind[kind])


def _with_kind(old: object, kind: str) -> object:
    """The slot after choosing `kind`: the options stay if it was that kind already, and go if it was another."""
    if isinstance(old, dict):
        slot = cast(dict[str, Any], old)
        if slot.get("kind") in (None, kind):
            return slot | {"kind": kind}
    return kind


def _invalid(override: Override, message: str) -> InvalidConfigError:
    return InvalidConfigError((Problem((), message, Place(override.flag)),))
