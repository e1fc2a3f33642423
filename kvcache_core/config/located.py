"""YAML text to plain data whose every value knows its line and column.

PyYAML's loader forgets positions, so the node tree is read instead. Knows nothing of models: which keys are right is decided
elsewhere.
"""

from pathlib import Path
from typing import Any

import yaml

from kvcache_core.config.nodes import NodeWalk, compose
from kvcache_core.config.problems import Loc, Place, Problem
from kvcache_core.config.secrets import MASK, UNQUOTED, is_secret_name, redacted
from kvcache_core.errors import InvalidConfigError


class LocatedDocument:
    """A YAML document: `data` as plain Python values, and the place of each of them.

    `problems`: what NodeWalk found. They are fatal, but a reader goes on first, so that a user hears of everything at once.
    """

    def __init__(self, name: str, text: str) -> None:
        """Raises InvalidConfigError: not YAML, or not one mapping; there is nothing to go on with."""
        self.name = name
        self._lines = text.splitlines()
        walk = NodeWalk(self._node_place)
        try:
            self._root = compose(text)
            self.data: Any = {} if self._root is None else walk.build(self._root)
        except RecursionError as error:
            raise InvalidConfigError((Problem((), "is nested too deeply", Place(name)),)) from error
        except yaml.MarkedYAMLError as error:
            place = self._place(error.problem_mark, 1) if error.problem_mark else Place(name)
            text = ", ".join(part for part in (error.context, error.problem) if part)
            if place.line is not None and place.text != self._line(place.line - 1):
                text = UNQUOTED  # the usual words may quote what the line does not show
            raise InvalidConfigError((Problem((), f"not valid YAML: {text}", place),)) from error
        except yaml.YAMLError as error:
            raise InvalidConfigError((Problem((), f"not valid YAML: {' '.join(str(error).split())}", Place(name)),)) from error
        if self._root is not None and not isinstance(self._root, yaml.MappingNode):
            text = "a configuration is a mapping of keys to values"
            raise InvalidConfigError((Problem((), text, self._node_place(self._root)),))
        self.problems = tuple(walk.problems)

    @classmethod
    def read(cls, path: Path) -> "LocatedDocument":
        """Raises InvalidConfigError, also when the file is missing, unreadable or not UTF-8."""
        try:
            return cls(str(path), path.read_text(encoding="utf-8-sig"))
        except FileNotFoundError as error:
            raise InvalidConfigError((Problem((), "no such file", Place(str(path))),)) from error
        except OSError as error:
            raise InvalidConfigError((Problem((), f"cannot be read: {error.strerror}", Place(str(path))),)) from error
        except UnicodeDecodeError as error:
            raise InvalidConfigError((Problem((), f"is not UTF-8 text: {error.reason}", Place(str(path))),)) from error

    def place(self, loc: Loc, *, key: bool = False) -> Place:
        """The place of the value at `loc`, or of its key; of the nearest parent that is there, when it is not."""
        node, found = self._root, None
        for part in loc:
            step = self._child(node, part)
            if step is None:
                # Something is missing here: point at the key of what should contain it rather than at its first child.
                break
            found = step
            node = step[1]
        else:
            if found is not None:
                return self._node_place(found[0] if key else found[1])
        return Place(self.name) if found is None else self._node_place(found[0])

    def has(self, loc: Loc) -> bool:
        """Whether the document itself has a value at `loc`."""
        node = self._root
        for part in loc:
            step = self._child(node, part)
            if step is None:
                return False
            node = step[1]
        return True

    @staticmethod
    def _child(node: yaml.Node | None, part: str | int) -> tuple[yaml.Node, yaml.Node] | None:
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                if key.value == part:
                    return key, value
        if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            return node.value[part], node.value[part]
        return None

    def _node_place(self, node: yaml.Node) -> Place:
        start, end = node.start_mark, node.end_mark
        # A collection has no better caret than its first character; a plain value is underlined whole.
        length = end.column - start.column if isinstance(node, yaml.ScalarNode) and start.line == end.line else 1
        return self._place(start, length)

    def _place(self, mark: yaml.Mark, length: int) -> Place:
        return Place(self.name, mark.line + 1, mark.column + 1, redacted(self._line(mark.line)), length)

    def _line(self, number: int) -> str:
        return self._lines[number] if number < len(self._lines) else ""


def parse_value(text: str, flag: str, loc: Loc) -> Any:
    """A value written on the command line for the field at `loc`, read as YAML by the rules of a file.

    Raises:
        InvalidConfigError: all that is wrong with it, each naming `flag`.
    """
    walk = NodeWalk(lambda _: Place(flag))
    try:
        root = compose(text)
        value = None if root is None else walk.build(root, loc)
    except (yaml.YAMLError, RecursionError):
        shown = MASK if loc and is_secret_name(str(loc[-1])) else repr(redacted(text))
        # From None: what YAML says quotes the text.
        raise InvalidConfigError((Problem((), f"{shown} is not valid YAML", Place(flag)),)) from None
    if walk.problems:
        raise InvalidConfigError(tuple(walk.problems))
    return value
