"""From YAML's node tree to plain data, with everything that must not be in a configuration noted on the way.

PyYAML's own constructors let the last of two equal keys win and run what a tag asks for. Where a node stands is its caller's to
say: the same walk reads files and values on the command line.
"""

from collections.abc import Callable
from typing import Any, final

import yaml

from kvcache_core.config.core_schema import MERGE_TAG, CoreLoader, scalar, tag_fault
from kvcache_core.config.problems import Loc, Place, Problem
from kvcache_core.config.secrets import UNQUOTED, is_secret_name


def compose(text: str) -> yaml.Node | None:
    """The node tree of a text; None when there is nothing in it. Raises yaml.YAMLError, RecursionError."""
    loader = CoreLoader(text)
    try:
        return loader.get_single_node()
    finally:
        loader.dispose()  # pyright: ignore[reportUnknownMemberType]


@final
class NodeWalk:
    """Builds data from nodes. `problems` grows: keys given twice or that are no word, tags, numbers that readers disagree about,
    aliases inside themselves. The data is then of no use but for finding what else is wrong; it has the first of two equal keys.
    """

    def __init__(self, place_of: Callable[[yaml.Node], Place]) -> None:
        self.problems: list[Problem] = []
        self._place_of = place_of
        self._built: dict[int, Any] = {}

    def build(self, node: yaml.Node, loc: Loc = (), above: tuple[yaml.Node, ...] = ()) -> Any:
        """The data at `node`, which stands at `loc`, inside the nodes `above`."""
        if node in above:
            self._note(node, loc, "an alias may not contain itself")
            return None
        # Built once per node, not once per alias: a page of nested aliases would otherwise grow without end.
        if id(node) not in self._built:
            self._built[id(node)] = self._build_once(node, loc, (*above, node))
        return self._built[id(node)]

    def _build_once(self, node: yaml.Node, loc: Loc, above: tuple[yaml.Node, ...]) -> Any:
        fault = tag_fault(node)
        if fault is not None:
            self._note(node, loc, self._shown(fault, loc))
        if isinstance(node, yaml.SequenceNode):
            return [self.build(item, (*loc, i), above) for i, item in enumerate(node.value)]
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, loc, above)
        assert isinstance(node, yaml.ScalarNode)
        if fault is not None:
            return None
        try:
            return scalar(node)
        except ValueError as error:
            self._note(node, loc, self._shown(str(error), loc))
            return None

    def _mapping(self, node: yaml.MappingNode, loc: Loc, above: tuple[yaml.Node, ...]) -> dict[str, Any]:
        result: dict[str, Any] = {}
        places: dict[str, Place] = {}
        for key, value in node.value:
            name: str = key.value
            fault = tag_fault(key)
            if not isinstance(key, yaml.ScalarNode):
                self._note(key, loc, "a key must be a word, not a list or a mapping")
            elif fault is not None:
                self._note(key, (*loc, name), fault)
            elif key.tag == MERGE_TAG:
                self._note(key, loc, "merge keys (<<) are not supported")
            elif name in result:
                line = places[name].line
                self._note(key, (*loc, name), "given twice" if line is None else f"given twice, first at line {line}")
            else:
                places[name] = self._place_of(key)
                result[name] = self.build(value, (*loc, name), above)
        return result

    @staticmethod
    def _shown(message: str, loc: Loc) -> str:
        """What is said of a value at `loc`; the usual words quote it."""
        return UNQUOTED if loc and is_secret_name(str(loc[-1])) else message

    def _note(self, node: yaml.Node, loc: Loc, message: str) -> None:
        self.problems.append(Problem(loc, message, self._place_of(node)))
