"""Output whose encoding lacks a character: data stays loadable, text is escaped, and there is no traceback."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvcache_core.config.located import LocatedDocument

NAMED = "日-😀"


@pytest.fixture
def run(tmp_path: Path):
    (tmp_path / "cache.yaml").write_text(
        f"cache_type: unified_radix_cache\nhicache:\n  storage: {{kind: file, path: {NAMED}}}\n", encoding="utf-8"
    )

    def start(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "kvcache_core", "config", *words, "cache.yaml"],
            cwd=tmp_path,
            env=os.environ | {"PYTHONIOENCODING": "ascii"},
            capture_output=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.decode("ascii")

    return start


def test_what_is_shown_is_escaped(run):
    assert "\\u65e5-" in run("show")


def test_json_is_read_back(run):
    shown = {row["path"]: row["value"] for row in json.loads(run("show", "--json"))}
    assert Path(shown["hicache.storage.path"]).name == NAMED


def test_a_resolved_file_is_read_back(run):
    document = LocatedDocument("resolved.yaml", run("resolve"))
    assert Path(document.data["hicache"]["storage"]["path"]).name == NAMED
