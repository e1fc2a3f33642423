"""What every test of the repository runs under, whichever package it belongs to: devices, promotion rules, hypothesis.

The only place that sets these. It must not import jax: XLA and jax read the environment once, when they are first
imported. Subprocesses that tests start (the command line, mostly) inherit all of it.
"""

import os
import sys
from pathlib import Path

from hypothesis import HealthCheck, settings

FORCED_CPU_DEVICES = 4

if "jax" in sys.modules:
    raise RuntimeError("jax was imported before conftest.py could set its environment: look for a pytest plugin that does")

# Runners with equal shapes compile once a session, and once at all in a checkout: `make clean` forgets it.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parent / ".cache" / "jax-tests"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
# Several devices on one CPU, so that sharding over a mesh is tested everywhere. Flags given from outside stay.
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={FORCED_CPU_DEVICES}".strip()
# One platform, so that the golden numbers' tolerances hold; `JAX_PLATFORMS=cuda pytest ...` asks for another.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# A silent int32 -> float32 or a broadcast by accident would be a wrong page that looks right.
os.environ["JAX_NUMPY_DTYPE_PROMOTION"] = "strict"
os.environ["JAX_NUMPY_RANK_PROMOTION"] = "raise"

# `ci` is the default: the same examples in every run, so that a red run can be repeated. Deadlines would be timing
# assertions. `make soak` asks for `soak` with --hypothesis-profile, and with -m "" for the tests marked slow.
settings.register_profile("ci", derandomize=True, deadline=None, print_blob=True)
settings.register_profile(
    "soak", parent=settings.get_profile("ci"), derandomize=False, max_examples=2_000, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("ci")
