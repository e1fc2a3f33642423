"""Every page that people read leads where it says: those in docs/, the READMEs of all packages, ARCHITECTURE, CHANGELOG."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

LINK = re.compile(r"\]\(([^)\s]+)\)")
FOLDERS = ("docs", "benchmarks", "conformance", "engine", "examples", "kvcache_core", "plugins")


def pages_of(root: Path) -> list[Path]:
    """Markdown of the root and of our own folders; environments and caches beside them are not ours."""
    inside = [page for folder in FOLDERS for page in (root / folder).rglob("*.md")]
    return [
        page for page in [*root.glob("*.md"), *inside] if not any(part.startswith(".") for part in page.relative_to(root).parts)
    ]


def anchors_of(text: str) -> set[str]:
    """The names that a page's headings have on the web, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def broken_links(page: Path) -> Iterator[str]:
    """Links to files that are not there, and to headings that the page they lead to does not have."""
    for link in LINK.findall(re.sub(r"`[^`\n]*`", "", page.read_text(encoding="utf-8"))):
        path, _, anchor = link.partition("#")
        if "://" in link or link.startswith("mailto:"):
            continue
        target = page.parent / path if path else page
        if not target.exists() or (anchor and anchor not in anchors_of(target.read_text(encoding="utf-8"))):
            yield link


def test_links_lead_somewhere(root: Path):
    pages = pages_of(root)
    names = {page.relative_to(root).as_posix() for page in pages}
    assert {"README.md", "ARCHITECTURE.md", "docs/plugins.md", "benchmarks/README.md", "plugins/radix/README.md"} <= names
    assert sum(len(LINK.findall(page.read_text(encoding="utf-8"))) for page in pages) >= 10
    assert [(page.relative_to(root).as_posix(), link) for page in pages for link in broken_links(page)] == []


@pytest.mark.parametrize(
    ("text", "broken"),
    [
        ("[a](b.md) and [c](https://example.org/x)", []),
        ("[a](b.md#a-heading-with-code) [a](#here)\n\n# Here", []),
        ("[a](c.md)", ["c.md"]),
        ("[a](b.md#nowhere)", ["b.md#nowhere"]),
        ("[a](#nowhere)\n\n```\n# nowhere\n```", ["#nowhere"]),
        ("`[a](c.md)`", []),
    ],
)
def test_a_broken_link_is_seen(tmp_path: Path, text: str, broken: list[str]):
    (tmp_path / "b.md").write_text("# A heading, with `code`\n", encoding="utf-8")
    (tmp_path / "a.md").write_text(text, encoding="utf-8")
    assert list(broken_links(tmp_path / "a.md")) == broken
