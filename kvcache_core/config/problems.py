"""One thing wrong with a configuration, and how it is shown. Knows nothing of files or models."""

from dataclasses import asdict, dataclass
from typing import Any

from kvcache_core.errors import did_you_mean

Loc = tuple[str | int, ...]


def dotted(loc: Loc) -> str:
    """A path as people write it: hicache.storage.path, or engine.prompts[3] for a place in a list."""
    text = ""
    for part in loc:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value stands: in a file (`line` and `column` from 1, `length` in characters, `text` the line), or on a flag."""

    name: str
    line: int | None = None
    column: int | None = None
    text: str = ""
    length: int = 1

    def __str__(self) -> str:
        return self.name if self.line is None else f"{self.name}:{self.line}:{self.column}"


@dataclass(frozen=True, slots=True)
class Problem:
    """`path: message (did you mean 'suggestion'?)` at a place, if there is one."""

    loc: Loc
    message: str
    place: Place | None = None
    suggestion: str | None = None

    def render(self) -> str:
        """`file:line:col: path: what is wrong (did you mean ...?)`, then the source line and a caret."""
        text = self.message + did_you_mean(self.suggestion)
        text = ": ".join(part for part in (str(self.place) if self.place else "", dotted(self.loc), text) if part)
        if self.place is None or self.place.line is None or self.place.column is None:
            return text
        gutter = f"{self.place.line:5} | "
        # Tabs are copied into the caret's line, so that the caret stands under the value in every terminal.
        indent = "".join("\t" if c == "\t" else " " for c in self.place.text[: self.place.column - 1])
        return f"{text}\n{gutter}{self.place.text}\n{' ' * (len(gutter) - 2)}| {indent}{'^' * max(1, self.place.length)}"

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {"path": dotted(self.loc), "message": self.message, "suggestion": self.suggestion} | (
            {"place": asdict(self.place)} if self.place else {"place": None}
        )
