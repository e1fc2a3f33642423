"""Markdown from plain text. It knows no page."""

from collections.abc import Iterable, Sequence

GENERATED = "<!-- Written from the code by `make docs`: change the code's descriptions instead of this page. -->"


def page(title: str, *parts: str) -> str:
    """A whole page: title, the note that it is generated, the parts with an empty line between them."""
    return "\n\n".join((f"# {title}", GENERATED, *(part.strip() for part in parts))) + "\n"


def table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; a cell's line breaks become spaces, and its pipes stay pipes."""
    lines = ["| " + " | ".join(headers) + " |", "| " + " | ".join("---" for _ in headers) + " |"]
    lines += ["| " + " | ".join(_cell(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def code(text: str) -> str:
    """Text as code inside a line."""
    return f"`{text}`"


def block(text: str, language: str = "") -> str:
    """Lines as code."""
    return f"```{language}\n{text.strip()}\n```"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
