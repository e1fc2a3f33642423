#!/usr/bin/env bash
# The tests at the lowest version of everything that the distributions declare, against the wheels in $1/dist.
# Without the tests that load a real model: their versions are the test lane's.
set -euo pipefail

work=$1
env=$work/lowest
python=$(uv python find --no-project 3.11 2>/dev/null || echo .venv/bin/python)

uv venv --quiet --python "$python" "$env"
.venv/bin/python .ci/lower_bounds.py >"$work/lowest.txt"
uv pip install --quiet --python "$env/bin/python" --resolution lowest-direct -r "$work/lowest.txt" "$work"/dist/*.whl
"$env/bin/python" .ci/lower_bounds.py --check
# What servers do when they hang or go, equal logits over long workloads and the random machines take minutes and depend little on versions:
# the test lane sees them.
"$env/bin/pytest" -q -p no:cacheprovider -n "$(($(nproc) + 1))" --dist loadfile --no-loadscope-reorder -m "not real_model and not slow" \
  --ignore-glob='*/test_kl_*.py' --ignore=engine/tests/test_goldens_hit_path.py \
  --ignore-glob='*/tests/conformance/test_unified_*machine*.py' \
  --deselect=plugins/storage_mooncake/tests/test_mooncake_conforms.py::TestMooncakeStorage::test_the_machine_finds_nothing \
  --ignore=plugins/storage_mooncake/tests/test_mooncake_engine.py --ignore=plugins/storage_mooncake/tests/test_mooncake_faults.py \
  --ignore=plugins/storage_object/tests/test_object_engine.py --ignore=plugins/storage_object/tests/test_object_faults.py \
  --ignore=plugins/storage_redis/tests/test_redis_cluster.py --ignore=plugins/storage_redis/tests/test_redis_engine.py \
  --ignore=plugins/storage_redis/tests/test_redis_guarded.py --ignore=plugins/storage_redis/tests/test_redis_server_faults.py
