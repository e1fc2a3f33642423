"""The parser of `kvcache` and of each of its commands: what it does not know is said by the command that was asked.

argparse hands what a command does not know up to the top, which then shows its own usage, where no option of the command is.
"""

import argparse
import re
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, Final, final

from kvcache_core.errors import KVCacheError

_OPTION: Final = re.compile(r"--[A-Za-z0-9][\w.-]*")


@final
class CommandParser(argparse.ArgumentParser):
    """Its sub-commands are of this class too, as argparse has it."""

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> tuple[Any, list[str]]:  # pyright: ignore[reportIncompatibleMethodOverride] - the overloads differ in the namespace alone
        """As the base class, with nothing left over.

        Raises:
            KVCacheError: something is left over; names the nearest option of this command.
        """
        found, rest = super().parse_known_args(args, namespace)
        if rest:
            raise KVCacheError(self._said(rest[0]))
        return found, rest

    def _said(self, word: str) -> str:
        name = word.partition("=")[0]
        if not name.startswith("-"):
            return f"'{self.prog}' does not take '{word}' (`{self.prog} --help` shows what it takes)"
        close = get_close_matches(name, sorted(set(_OPTION.findall(self.format_help()))), n=1)
        hint = f"did you mean '{close[0]}'?" if close else f"`{self.prog} --help` shows them"
        return f"'{self.prog}' has no option '{name}' ({hint})"
