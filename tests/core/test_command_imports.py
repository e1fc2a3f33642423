"""What `kvcache` imports: a command line that is asked for little has to answer at once."""

import subprocess
import sys
from pathlib import Path

import pytest

from kvcache_conformance.clean_environment import CleanEnvironment


@pytest.mark.parametrize(
    "words", [["config", "explain", "--cache-type", "chunk_cache"], ["plugins", "list"], ["config", "schema"]], ids=" ".join
)
def test_no_command_of_the_core_imports_jax(words: list[str], tmp_path: Path):
    code = (
        "import sys; from kvcache_core.cli import main; status = main(sys.argv[1:]);"
        "heavy = sorted(m for m in sys.modules if m.partition('.')[0] in ('jax', 'jaxlib', 'numpy'));"
        "print(status, heavy, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *words], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stderr == "0 []\n"


@pytest.mark.parametrize("words", [["--help"], ["plugins", "list"], ["nonsense"]], ids=" ".join)
def test_what_needs_no_configuration_imports_none_of_it(words: list[str], tmp_path: Path):
    """Half of the start is pydantic. No plugin of this checkout's caches and components has options, so none asks for it."""
    environment = CleanEnvironment(tmp_path / "site")
    environment.link("kvcache-radix")
    code = (
        "import sys; from kvcache_core.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        "print(sorted(m for m in ('pydantic', 'yaml', 'kvcache_core.config') if m in sys.modules))"
    )
    assert environment.python("-c", code, *words, cwd=tmp_path).stdout.splitlines()[-1] == "[]"


def test_importing_the_core_alone_is_light():
    code = "import sys, kvcache_core; print(sorted(m for m in sys.modules if m in ('pydantic', 'numpy', 'yaml', 'pluggy')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "[]\n"
