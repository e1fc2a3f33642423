"""YAML text to plain data whose every value knows its line and column.

PyYAML's loader forgets positions and lets the last of two equal keys win, so the node tree is read instead. Knows nothing of
models: which keys are right is decided elsewhere.
"""

from pathlib import Path
from typing import Any

import yaml

from kvcache_core.config.problems import Loc, Place, Problem
from kvcache_core.errors import InvalidConfigError


class LocatedDocument:
    """A YAML document: `data` as plain Python values, and the place of each of them.

    `problems`: keys given twice or that are no word, aliases inside themselves. They are fatal, but a reader goes on first, so that
    a user hears of everything at once; `data` has the first of two equal keys.
    """

    def __init__(self, name: str, text: str) -> None:
        """Raises InvalidConfigError: not YAML, or not one mapping; there is nothing to go on with."""
        self.name = name
        self._lines = text.splitlines()
        self._problems: list[Problem] = []
        self._built: dict[int, Any] = {}
        try:
            self._loader = yaml.SafeLoader(text)
            try:
                self._root: yaml.Node | None = self._loader.get_single_node()
                self.data: Any = {} if self._root is None else self._build(self._root, (), ())
            finally:
                self._loader.dispose()  # pyright: ignore[reportUnknownMemberType]
        except yaml.MarkedYAMLError as error:
            place = self._place(error.problem_mark, 1) if error.problem_mark else Place(name)
            text = ", ".join(part for part in (error.context, error.problem) if part)
            raise InvalidConfigError((Problem((), f"not valid YAML: {text}", place),)) from error
        except yaml.YAMLError as error:
            raise InvalidConfigError((Problem((), f"not valid YAML: {' '.join(str(error).split())}", Place(name)),)) from error
        if self._root is not None and not isinstance(self._root, yaml.MappingNode):
            text = "a configuration is a mapping of keys to values"
            raise InvalidConfigError((Problem((), text, self._node_place(self._root)),))

    @property
    def problems(self) -> tuple[Problem, ...]:
        return tuple(self._problems)

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

    def _build(self, node: yaml.Node, loc: Loc, above: tuple[yaml.Node, ...]) -> Any:
        if node in above:
            self._problems.append(Problem(loc, "an alias may not contain itself", self._node_place(node)))
            return None
        above = (*above, node)
        # Built once per node, not once per alias: a page of nested aliases would otherwise grow without end.
        if id(node) not in self._built:
            self._built[id(node)] = self._build_once(node, loc, above)
        return self._built[id(node)]

    def _build_once(self, node: yaml.Node, loc: Loc, above: tuple[yaml.Node, ...]) -> Any:
        if isinstance(node, yaml.SequenceNode):
            return [self._build(item, (*loc, i), above) for i, item in enumerate(node.value)]
        if not isinstance(node, yaml.MappingNode):
            return self._scalar(node, loc)
        result: dict[str, Any] = {}
        for key, value in node.value:
            name = key.value
            if not isinstance(key, yaml.ScalarNode):
                self._problems.append(Problem(loc, "a key must be a word, not a list or a mapping", self._node_place(key)))
            elif key.tag == "tag:yaml.org,2002:merge":
                self._problems.append(Problem(loc, "merge keys (<<) are not supported", self._node_place(key)))
            elif name in result:
                first = self.place((*loc, name), key=True)
                self._problems.append(Problem((*loc, name), f"given twice, first at line {first.line}", self._node_place(key)))
            else:
                result[name] = self._build(value, (*loc, name), above)
        return result

    def _scalar(self, node: yaml.Node, loc: Loc) -> Any:
        try:
            return self._loader.construct_object(node)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        except ValueError as error:  # such as the date 2026-02-31
            self._problems.append(Problem(loc, f"cannot be read as YAML: {error}", self._node_place(node)))
            return None

    def _node_place(self, node: yaml.Node) -> Place:
        start, end = node.start_mark, node.end_mark
        # A collection has no better caret than its first character; a plain value is underlined whole.
        length = end.column - start.column if isinstance(node, yaml.ScalarNode) and start.line == end.line else 1
        return self._place(start, length)

    def _place(self, mark: yaml.Mark, length: int) -> Place:
        text = self._lines[mark.line] if mark.line < len(self._lines) else ""
        return Place(self.name, mark.line + 1, mark.column + 1, text, length)


def parse_value(text: str, name: str, loc: Loc) -> Any:
    """A value written on the command line, read as YAML. Raises InvalidConfigError naming the flag `name`."""
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError) as error:
        raise InvalidConfigError((Problem(loc, f"{text!r} is not valid YAML", Place(name)),)) from error
