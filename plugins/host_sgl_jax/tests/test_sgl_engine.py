"""Our caches in sgl-jax's own engine on the CPU, against its own caches: the same tokens, no slot lost, at least as many hits.

Each run is a process. At page sizes over 1 its CPU attention is wrong for concurrent batches, with its own caches too: there, one
request runs at a time.
"""

import json
import os
import random
import subprocess
import sys

import pytest

pytest.importorskip("sgl_jax", reason="sgl-jax is not installed here: it needs Python 3.12 (docs/sgl-jax.md)")

RUN = "from kvcache_conformance.sgl_jax_session import main; main()"
INSTALL = "from kvcache_sgl_jax.install import install; install({path!r}); "
OURS = {
    "chunk_cache": "cache_type: chunk_cache",
    "radix_cache": "cache_type: radix_cache",
    "unified_radix_cache": "cache_type: unified_radix_cache",
    "two tiers": "cache_type: unified_radix_cache\nhicache: {ratio: 4}",
    "two tiers, backup at eviction": "cache_type: unified_radix_cache\nhicache: {ratio: 4, backup_on: evict, persist_on: never}",
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """`run(spec, configuration)`: one run, of our cache where there is a configuration; equal ones are done once."""
    folder = tmp_path_factory.mktemp("sgl")
    done = {}

    def run_once(spec, configuration=None, **environment):
        spec = {"model": str(folder / "model"), "max_new_tokens": [*range(3, 12)], **spec}
        key = (json.dumps(spec, sort_keys=True), configuration, *environment.items())
        if key not in done:
            program = RUN
            if configuration is not None:
                path = folder / "cache.yaml"
                path.write_text(configuration)
                program = INSTALL.format(path=str(path)) + RUN
            # Without what our conftest sets for this process: several devices, and promotions of types and ranks as errors.
            env = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "XLA_"))}
            env |= {"JAX_COMPILATION_CACHE_DIR": str(folder / "jit"), **environment}
            # sgl-jax answers an error in a thread by ending the parent of its process: that is this shell, not pytest.
            command = ["sh", "-c", '"$@"; exit $?', "sh", sys.executable, "-c", program]
            ended = subprocess.run(
                command, input=json.dumps(spec), capture_output=True, text=True, timeout=600, check=False, env=env
            )
            assert ended.returncode == 0, ended.stderr[-4000:]
            done[key] = json.loads(ended.stdout.splitlines()[-1])
        return done[key]

    return run_once


def crowd():
    """3 rounds of 28 prompts that share beginnings, for a pool that holds a fraction of them."""
    rng = random.Random(7)
    stems = [[rng.randrange(1, 250) for _ in range(n)] for n in (40, 100, 170)]

    def prompt():
        return rng.choice(stems)[: rng.randrange(5, 170)] + [rng.randrange(1, 250) for _ in range(rng.randrange(1, 30))]

    return [[prompt() for _ in range(28)] for _ in range(3)]


def single_file():
    """Four prompts that do not fit into the pool together, twice, one at a time."""
    rng = random.Random(5)
    prompts = [[rng.randrange(1, 250) for _ in range(100)] for _ in range(4)]
    return [[prompts[i]] for i in (0, 1, 2, 3, 0, 1, 2, 3, 3, 0)]


def arguments(overlap, tokens, page_size=1, **more):
    return {"disable_overlap_schedule": not overlap, "max_total_tokens": tokens, "page_size": page_size, **more}


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("ours", OURS)
def test_a_crowd_gets_the_tokens_and_the_hits_of_its_own_caches(run, ours, overlap):
    spec = {"rounds": crowd(), "args": arguments(overlap, 600)}
    no_reuse = run({**spec, "args": spec["args"] | {"disable_radix_cache": True}})
    theirs = run(spec)
    got = run(spec, OURS[ours])
    assert (no_reuse["cache"], theirs["cache"], got["cache"]) == ("ChunkCache", "RadixCache", "SglPrefixCache")
    assert got["outputs"] == theirs["outputs"] == no_reuse["outputs"]
    if ours != "chunk_cache":
        # With overlap it depends on the moment whether the first of two equal prompts is there in time for the second.
        slack = 60 if overlap else 0
        assert sum(map(sum, got["cached"])) >= sum(map(sum, theirs["cached"])) - slack
        assert got["counters"][0]["device_evicted_tokens"] > 0


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("ours", ["radix_cache", "two tiers"])
def test_24_requests_and_more_decode_together_in_a_pool_that_holds_them(run, ours, overlap):
    """The pool of 600 tokens, which has to evict, never runs more than about 15 of its 28 at once."""
    spec = {"rounds": crowd()[:2], "max_new_tokens": [30], "args": arguments(overlap, 6000)}
    theirs, got = run(spec), run(spec, OURS[ours])
    assert got["outputs"] == theirs["outputs"]
    assert got["peak"] >= 24


@pytest.mark.parametrize("ours", ["radix_cache", "two tiers"])
def test_requests_taken_back_in_mid_answer_start_again_with_the_same_tokens(run, ours):
    spec = {"rounds": crowd()[:1], "args": arguments(False, 600)}
    assert run(spec, OURS[ours], SGLANG_TEST_RETRACT="1")["outputs"] == run(spec)["outputs"]


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("ours", ["two tiers", "two tiers, backup at eviction"])
def test_what_was_pushed_out_of_its_pool_comes_back_from_our_l2(run, ours, page_size, overlap):
    """The pool is full each time and has to be evicted for the load; sgl-jax's own HiCache declines then."""
    spec = {"rounds": single_file(), "max_new_tokens": [8], "args": arguments(overlap, 256, page_size)}
    got = run(spec, OURS[ours])
    assert got["outputs"] == run(spec)["outputs"]
    whole = 99 // page_size * page_size
    cached = [cached for [cached] in got["cached"]]
    assert cached[:4] == [0] * 4
    # A copy that is still on its way when its prompt comes again serves nobody, so one may be missed on a busy machine.
    assert cached[4:].count(whole) >= 5
    assert got["counters"][0]["host_loaded_tokens"] >= 4 * whole
    own = {"hicache_storage": "none", "hicache_ratio": 4.0}
    declined = run({**spec, "args": spec["args"] | own})
    assert declined["cache"] == "UnifiedRadixCache"
    assert declined["outputs"] == got["outputs"]
    assert sum(map(sum, declined["cached"])) < sum(map(sum, got["cached"]))
