# Every target installs what it needs first: uv (from PyPI into .bootstrap, when the shell has none), then the workspace
# with its tools into .venv. It needs Python 3.11 or newer, pip and nothing else; it downloads no interpreter.

export UV_PYTHON_DOWNLOADS ?= never
export UV_PROJECT_ENVIRONMENT := .venv

PYTHON ?= python3
UV := $(or $(shell command -v uv 2>/dev/null),.bootstrap/bin/uv)
# Not `uv run`: it hands Ctrl-C on a second time, and `kvcache run` would not get to say what it has done.
BIN := .venv/bin
# Two more than cores: some tests wait for servers.
WORKERS = $(shell $(PYTHON) -c "import os; print(os.cpu_count() + 2)")
BENCHMARKS := $(patsubst benchmarks/bench_%.py,%,$(wildcard benchmarks/bench_*.py))

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help run test lint format bench soak docs clean sync

help: ## Show the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-7s %s\n", $$1, $$2 }' Makefile

run: sync ## Serve the example conversations with a real model (examples/quickstart.yaml)
	@$(BIN)/kvcache run examples/quickstart.yaml $(ARGS)

# In the order of the folders: the longest tests stand alone in their files, and would come last by the number of tests in a file.
test: sync ## Run every test (ARGS="-k name" is handed to pytest)
	@$(BIN)/pytest -q -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

lint: sync ## Check style, types and import rules
	@$(BIN)/ruff check --quiet --output-format concise .
	@$(BIN)/ruff format --check --quiet . || { echo "'make format' rewrites these files:"; $(BIN)/ruff format --check .; exit 1; }
	@$(BIN)/pyright
	@$(BIN)/pyright --project pyright-tests.json
	@$(BIN)/lint-imports --no-logo

format: sync ## Rewrite the sources in the project's format
	@$(BIN)/ruff check --quiet --fix .
	@$(BIN)/ruff format .

bench: sync ## Run every benchmark as it is, or one with options (BENCH=radix_tree ARGS="--quick")
	@test -z "$(ARGS)" -o -n "$(BENCH)" || { \
	  echo "each benchmark has options of its own: say which one ARGS is for, as in 'make bench BENCH=radix_tree ARGS=--help'"; exit 2; }
	@set -e; for script in benchmarks/bench_$(or $(BENCH),*).py; do \
	  test -e "$$script" || { echo "there is no $$script; there are: $(BENCHMARKS)"; exit 2; }; \
	  echo "== $$script"; $(BIN)/python "$$script" $(ARGS); \
	done

soak: sync ## Run the full products and the long random runs
	@$(BIN)/pytest -q -m "" --hypothesis-profile=soak $(ARGS)

docs: sync ## Write the reference pages in docs/reference from the code
	@$(BIN)/python docs/generate.py $(ARGS)

clean: ## Remove environments, caches and results
	rm -rf .venv .bootstrap .cache out dist build .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

sync: $(UV)
	@test -d .venv || echo "installing the workspace and its tools into .venv (once)"
	@$(UV) sync --quiet --all-packages

.bootstrap/bin/uv:
	@echo "installing uv into .bootstrap"
	@$(PYTHON) -m venv .bootstrap
	@.bootstrap/bin/python -m pip install --quiet --disable-pip-version-check 'uv>=0.8'
