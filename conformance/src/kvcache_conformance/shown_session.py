"""Does what a page of documentation shows, in a CleanEnvironment, and compares what it shows with what happens.

A page's blocks are read like this:

- after a line that is nothing but a bold file name in backquotes, a block is that file's content;
- a block of the language `console` has commands after `$ `, each followed by what it prints; `...` there stands for anything;
- other blocks are shown only.

`kvcache`, `python`, `cd`, `echo $?`, `pip install` and a few commands that handle files are known; any other command is an error,
so that a page cannot show something that nobody tried. `pip install .` builds the wheel and unpacks it, `pip install NAME` links
what is installed around us: nothing is downloaded.
"""

import difflib
import doctest
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from kvcache_conformance.clean_environment import CleanEnvironment, Done

FILE_NAME = re.compile(r"^\*\*`([^`]+)`\*\*$")
FILE_COMMANDS = frozenset({"cat", "ls", "mkdir", "mv", "sed"})
_BUILD = "from hatchling.build import build_wheel; print(build_wheel('dist'))"


class ShownWrongError(AssertionError):
    """A page shows something that does not happen. The text has the page's line and a comparison."""


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: `file` is the name above it, `line` the number of its first line."""

    language: str
    file: str | None
    text: str
    line: int


@dataclass(frozen=True, slots=True)
class Shown:
    """A command and what the page says that it prints."""

    command: str
    output: str
    line: int


def blocks_in(page: str) -> Iterator[Block]:
    """The fenced blocks of a page, in order."""
    lines = page.splitlines()
    number, above = 0, ""
    while number < len(lines):
        if not lines[number].startswith("```"):
            above = lines[number] if lines[number].strip() else above
            number += 1
            continue
        end = lines.index("```", number + 1)
        name = FILE_NAME.match(above)
        text = "".join(f"{line}\n" for line in lines[number + 1 : end])
        yield Block(lines[number][3:].strip(), name and name[1], text, number + 2)
        number, above = end + 1, ""


def commands_in(block: Block) -> Iterator[Shown]:
    """The commands of a `console` block."""
    lines = block.text.splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith("$ ")]
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        output = "".join(f"{line}\n" for line in lines[start + 1 : end])
        yield Shown(lines[start].removeprefix("$ "), output, block.line + start)


@final
class ShownSession:
    """One reader at a terminal, who starts in an empty folder and does what a page says."""

    def __init__(self, environment: CleanEnvironment, folder: Path) -> None:
        self.environment = environment
        self.folder = folder
        self._status = 0
        self.commands = 0

    def follow(self, page: str) -> None:
        """Write the page's files and run its commands, in order.

        Raises:
            ShownWrongError: a command is not known, or prints something else.
        """
        for block in blocks_in(page):
            if block.file is not None:
                target = self.folder / block.file
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(block.text, encoding="utf-8")
            elif block.language == "console":
                for shown in commands_in(block):
                    self._compare(shown, self.run(shown.command))
                    self.commands += 1

    def run(self, command: str) -> str:
        """Run one command; returns what it prints, and remembers its exit status."""
        if command == "echo $?":
            return f"{self._status}\n"
        words = shlex.split(command)
        if words[0] == "cd":
            self.folder = self.folder / words[1]
            return ""
        done = self._start(words)
        self._status = done.returncode
        return done.stdout

    def _start(self, words: Sequence[str]) -> Done:
        match words:
            case ["kvcache", *rest]:
                return self.environment.kvcache(*rest, cwd=self.folder)
            case ["python", *rest]:
                return self.environment.python(*rest, cwd=self.folder)
            case ["pip", "install", "--quiet", "."]:
                return self._install()
            case ["pip", "install", "--quiet", *names]:
                for name in names:
                    self.environment.link(name)
                return Done(words, 0, "")
            case [command, *_] if command in FILE_COMMANDS:
                return _run(words, self.folder)
            case _:
                raise ShownWrongError(f"nobody knows how to try the command {shlex.join(words)!r}")

    def _install(self) -> Done:
        # The build backend alone, without a front end: nothing is downloaded.
        done = _run([sys.executable, "-c", _BUILD], self.folder)
        if done.returncode:
            raise ShownWrongError(f"the package in {self.folder.name} cannot be built:\n{done.stdout}")
        self.environment.unpack(self.folder / "dist" / done.stdout.split()[-1])
        return Done(done.args, 0, "")

    def _compare(self, shown: Shown, output: str) -> None:
        if doctest.OutputChecker().check_output(shown.output, output, doctest.ELLIPSIS):
            return
        lines = difflib.ndiff(shown.output.splitlines(), output.splitlines())
        raise ShownWrongError(
            f"line {shown.line}: `{shown.command}` prints something else (- shown, + printed):\n" + "\n".join(lines)
        )


def _run(words: Sequence[str], folder: Path) -> Done:
    return subprocess.run(
        words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120, check=False
    )
