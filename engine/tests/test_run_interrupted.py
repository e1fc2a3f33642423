"""`kvcache run` and `kvcache sweep` that a signal meets before there is anything to report. The process sends it to itself, so
that it always comes at the same moment."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

CONFIG = """\
page_size: 16
engine:
  model: {model}
  prompts: prompts.jsonl
  device_tokens: 320
  max_tokens: 2
  compilation_cache: null
"""
START = """
import gc, os, signal, sys
from kvcache_core.cli import main

number, sent = int(sys.argv.pop(1)), []

def send():
    if not sent:
        sent.append(number)
        print("sent", flush=True)
        os.kill(os.getpid(), number)
"""
IMPORTING = """
# In a callback of the garbage collector, as jax has one: whatever is raised there, Python drops.
gc.callbacks.append(lambda *_: send() if "jax" in sys.modules and "kvcache_engine.run" not in sys.modules else None)
"""
# Both after the line that says what is opened.
OPENING = """
sys.addaudithook(lambda event, args: send() if event == "open" and str(args[0]).endswith("config.json") else None)
"""
DIGEST = OPENING.replace("config.json", ".safetensors")
"""Its last step: the reader of tensors maps the file, so Python opens it for the model's version only."""
END = "sys.exit(main())"


@pytest.fixture
def config(tmp_path, qwen3_folder) -> Path:
    (tmp_path / "prompts.jsonl").write_text(json.dumps({"id": "one", "prompt": "x"}), encoding="utf-8")
    path = tmp_path / "cache.yaml"
    path.write_text(CONFIG.format(model=qwen3_folder), encoding="utf-8")
    return path


def interrupted(config: Path, command: str, moment: str, number: int) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-c", f"{START}{moment}{END}", str(int(number)), command, str(config)]
    return subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize(("command", "number", "status"), [("run", signal.SIGINT, 130), ("sweep", signal.SIGTERM, 143)])
def test_no_signal_is_lost_while_jax_is_imported(config, command, number, status):
    done = interrupted(config, command, IMPORTING, number)
    assert done.stdout == "sent\n", done.stderr
    assert done.returncode == status, done.stderr
    assert "opening " not in done.stderr
    assert done.stderr.endswith("kvcache: interrupted\n")


@pytest.mark.parametrize(("command", "moment"), [("run", OPENING), ("run", DIGEST), ("sweep", DIGEST)])
def test_sigterm_while_the_model_loads_is_not_called_ctrl_c(config, command, moment):
    done = interrupted(config, command, moment, signal.SIGTERM)
    assert done.stdout == "sent\n", done.stderr
    assert done.returncode == 143, done.stderr
    assert "opening " in done.stderr
    assert done.stderr.endswith("kvcache: interrupted\n")
