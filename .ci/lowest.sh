#!/usr/bin/env bash
# The tests at the lowest version of everything that the distributions declare, against the wheels in $1/dist.
# Without the tests that load a real model: their versions are the test lane's.
set -euo pipefail

work=$1
env=$work/lowest
python=$(uv python find --no-project 3.11 2>/dev/null || echo .venv/bin/python)

uv venv --quiet --python "$python" "$env"
"$python" .ci/lower_bounds.py >"$work/lowest.txt"
uv pip install --quiet --python "$env/bin/python" --resolution lowest-direct -r "$work/lowest.txt" "$work"/dist/*.whl
"$env/bin/python" .ci/lower_bounds.py --check
timeout 1500 "$env/bin/pytest" -q -p no:cacheprovider -n auto --dist loadfile -m "not real_model and not slow"
