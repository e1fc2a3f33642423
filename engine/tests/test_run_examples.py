"""`examples/window.yaml` and `examples/recurrent.yaml` as they are, run twice: hits in every tier, a pool for each component, and
the answers of a run that reuses nothing."""

import json
from pathlib import Path

import pytest

from kvcache_core.cli import main

# A minute of compiling, with every program new. tests/docs sees that the files are valid.
pytestmark = pytest.mark.slow
EXAMPLES = Path(__file__).parents[2] / "examples"
SHORT = ("--set", "engine.max_tokens=8", "--set", "engine.compilation_cache=null")


def run(capsys, out: Path, *words: str) -> tuple[dict, str]:
    """What the JSON says, and what is printed."""
    assert main(["run", *words, *SHORT, "--json", str(out)]) == 0
    return json.loads(out.read_text(encoding="utf-8")), capsys.readouterr().out


@pytest.mark.parametrize(("name", "component"), [("window", "swa"), ("recurrent", "recurrent")])
def test_a_hybrid_example_reuses_from_every_tier(name, component, tmp_path, capsys) -> None:
    example, store = str(EXAMPLES / f"{name}.yaml"), str(tmp_path / "store")
    alone, _ = run(capsys, tmp_path / "alone.json", example, "--cache-type", "chunk_cache", "--set", "hicache=null")
    results = [run(capsys, tmp_path / f"{i}.json", example, "--hicache-storage-path", store) for i in range(2)]
    assert alone["summary"]["cache_type"] == "chunk_cache" and not any(alone["summary"]["cached_tokens"].values())
    for result, printed in results:
        assert result["summary"]["cache_type"] == "unified_radix_cache"
        assert {tier: set(made["units"]) for tier, made in result["summary"]["tiers"].items()} == {
            "device": {"full", component},
            "host": {"full", component},
        }
        assert component in printed
        for request, expected in zip(result["requests"], alone["requests"], strict=True):
            assert request["error"] is None
            assert request["output_tokens"] == expected["output_tokens"]
            assert sum(request["cached_tokens"].values()) + request["computed_tokens"] == request["prompt_tokens"]
        assert not result["summary"]["cache"]["dropped"]
    first, second = (result["summary"]["cached_tokens"] for result, _ in results)
    assert first["device"] > 0 and first["host"] > 0 and first["storage"] == 0
    assert second["storage"] > 0
    # Every prefix of the second run was computed in the first one: but for the end of a prompt, nothing is computed again.
    for request in results[1][0]["requests"]:
        assert request["computed_tokens"] <= 16
