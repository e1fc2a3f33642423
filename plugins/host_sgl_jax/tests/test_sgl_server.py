"""Our caches behind sgl-jax's HTTP server: salts and LoRA adapters never share, a flush forgets, its status answers.

The server is started as a user does, with its scheduler in a process of its own.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import numpy as np
import pytest

pytest.importorskip("sgl_jax", reason="sgl-jax is not installed here: it needs Python 3.12 (docs/sgl-jax.md)")

from safetensors.numpy import save_file

from kvcache_conformance.tiny_models import tiny_qwen3, write_model_folder

IDS = list(range(40, 90))
START_SECONDS = 300
FLAGS = [
    *("--device", "cpu", "--dtype", "float32", "--attention-backend", "native", "--grammar-backend", "none"),
    *("--disable-precompile", "--skip-server-warmup", "--max-total-tokens", "2048", "--max-running-requests", "8"),
    *("--max-loras-per-batch", "3", "--max-lora-rank", "8", "--host", "127.0.0.1"),
]


def write_adapter(folder, seed):
    """A LoRA of rank 8 on the tiny model's query and value projections."""
    folder.mkdir()
    config = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj"], "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    rng = np.random.default_rng(seed)
    tensors = {}
    for layer in range(2):
        for module, width in (("q_proj", 512), ("v_proj", 256)):
            name = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            tensors[f"{name}.lora_A.weight"] = rng.normal(0, 0.3, (8, 64)).astype(np.float32)
            tensors[f"{name}.lora_B.weight"] = rng.normal(0, 0.3, (width, 8)).astype(np.float32)
    save_file(tensors, folder / "adapter_model.safetensors")


class Server:
    """A running server; `flags` are ours."""

    def __init__(self, folder, flags):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        adapters = [f"{name}={folder / name}" for name in ("a", "b")]
        model = ["--model-path", str(folder / "model"), "--lora-paths", *adapters, "--port", str(self._port)]
        # Without what our conftest sets for this process: several devices, and promotions of types and ranks as errors.
        env = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "XLA_"))}
        env |= {"JAX_PLATFORMS": "cpu", "HF_HUB_OFFLINE": "1", "JAX_COMPILATION_CACHE_DIR": str(folder / "jit")}
        self._log = folder / f"{self._port}.log"
        with self._log.open("w") as log:
            # A group of its own: its scheduler and detokenizer outlive a server that is killed.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "kvcache_sgl_jax", *flags, *model, *FLAGS],
                env=env,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait(self):
        """Raises AssertionError, with its log, when it does not come up."""
        end = time.monotonic() + START_SECONDS
        while True:
            assert self._process.poll() is None, self._log.read_text()[-4000:]
            assert time.monotonic() < end, self._log.read_text()[-4000:]
            try:
                self.call("/get_model_info")
            except OSError:
                time.sleep(0.25)
            else:
                return self

    def end(self):
        """Its log, when it has ended by itself; raises TimeoutExpired when it does not."""
        assert self._process.wait(START_SECONDS) != 0
        return self._log.read_text()

    def call(self, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._port}{path}", data=data, headers={"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.read().decode()

    def generate(self, **settings):
        """Tokens and how many of the prompt's were cached."""
        sampling = {"temperature": 0, "max_new_tokens": 4, "ignore_eos": True}
        answer = json.loads(self.call("/generate", {"input_ids": IDS, "sampling_params": sampling, **settings}))
        return tuple(answer["output_ids"]), answer["meta_info"]["cached_tokens"]

    def state(self):
        return json.loads(self.call("/get_server_info"))["internal_states"][0]

    def has_our_cache(self):
        """What its scheduler logged: with sgl-jax's own cache everything here would look the same."""
        return "kvcache serves 1 data-parallel rank(s)" in self._log.read_text()

    def stop(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("server")
    write_model_folder(tiny_qwen3(head_dim=128), folder / "model")
    write_adapter(folder / "a", 1)
    write_adapter(folder / "b", 2)
    return folder


@pytest.mark.parametrize("flags", [["--kvcache-cache-type", "radix_cache"], ["--kvcache-hicache-ratio", "4"]])
def test_salts_and_adapters_are_apart_and_a_flush_forgets(folder, flags):
    server = Server(folder, flags)
    try:
        server.wait()
        assert server.has_our_cache()
        tokens = {}
        for settings in ({}, {"extra_key": "x"}, {"extra_key": "y"}, {"lora_path": "a"}, {"lora_path": "b"}):
            first, cached = server.generate(**settings)
            assert cached == 0, settings
            again, cached = server.generate(**settings)
            assert (again, cached) == (first, 49), settings
            tokens[str(settings)] = first
        assert server.generate(lora_path="a", extra_key="x")[1] == 0
        assert len({*tokens.values()}) == 3, "one answer of the model alone and one of each adapter"
        state = server.state()
        # 6 prefixes of 50 tokens of the prompt and 3 or 4 of the answer
        assert 6 * 53 <= state["tree_cache_size"] <= 6 * 54
        assert state["available_kv_tokens"] + state["tree_cache_size"] == 2048
        assert "flushed" in server.call("/flush_cache", {})
        assert server.state()["tree_cache_size"] == 0
        assert server.state()["available_kv_tokens"] == 2048
        assert server.generate() == (tokens["{}"], 0)
    finally:
        server.stop()


def test_what_is_wrong_with_our_flags_and_file_ends_the_start_with_all_of_it(tmp_path):
    path = tmp_path / "cache.yaml"
    path.write_text("cache_type: radix_cash\nhicache: {ratio: -1}\n")
    command = [sys.executable, "-m", "kvcache_sgl_jax", "--kvcache-config", str(path), "--kvcache-set", "page_size=many"]
    ended = subprocess.run([*command, "--model-path", "m"], capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 2
    assert "Traceback" not in ended.stderr
    for part in ("cache.yaml:2:", "ratio", "--kvcache-set page_size"):
        assert part in ended.stderr


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--kvcache-cache-type", "unified_radix_cache", "--hicache-storage", "none"], "sgl-jax's own HiCache"),
        (["--kvcache-set", "page_size=8", "--page-size", "4"], "started with --page-size 4"),
        (["--kvcache-cache-type", "nothing_of_that_name"], "nothing_of_that_name"),
    ],
)
def test_what_sgl_jax_s_settings_alone_forbid_ends_the_start_before_anything_is_started(flags, reason):
    command = [sys.executable, "-m", "kvcache_sgl_jax", *flags, "--model-path", "m", "--device", "cpu"]
    env = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "XLA_"))} | {"JAX_PLATFORMS": "cpu"}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=env)
    assert ended.returncode == 2, ended.stderr[-2000:]
    assert reason in ended.stderr
    assert "Traceback" not in ended.stderr


def test_what_only_its_pools_can_tell_ends_the_server_with_the_reason(folder):
    """More L2 than any machine has: known when the device pool is there, in the scheduler's process."""
    server = Server(folder, ["--kvcache-hicache-ratio", "1e12"])
    try:
        assert "hicache.ratio" in server.end()
    finally:
        server.stop()
