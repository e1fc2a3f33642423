"""Where figures go: what is said about the run, the JSON and the page of committed results. It measures nothing."""

import datetime
import json
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path

from radix_tree import figures
from radix_tree.figures import Figure


def about_run(command: Sequence[str]) -> dict[str, str]:
    """The command without `python`, and the machine as it is now."""
    return {
        "command": " ".join(["python", *command]),
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        "machine": f"{platform.system()} on {platform.machine()}, {os.cpu_count()} cores",
        "load at the start": f"{os.getloadavg()[0]:.1f}",
    }


def write(
    title: str,
    about: Mapping[str, str],
    made: Sequence[Figure],
    to_json: Path,
    to_markdown: Path | None,
    profiles: Mapping[str, Sequence[str]] | None = None,
) -> None:
    """The figures as JSON, and with `to_markdown` as a page; folders are made."""
    to_json.parent.mkdir(parents=True, exist_ok=True)
    to_json.write_text(json.dumps({"about": about, "figures": [figure.as_dict() for figure in made]}, indent=1) + "\n")
    if to_markdown is not None:
        to_markdown.parent.mkdir(parents=True, exist_ok=True)
        to_markdown.write_text(figures.markdown(title, about, made, profiles or {}))
