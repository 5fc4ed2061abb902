# Two commands matter: `make serve` installs everything and serves, `make test` installs everything and tests.
SHELL := /bin/bash
.DEFAULT_GOAL := help

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
EXTRA ?= cpu
MINUTES ?= 2
# Where PyTorch's CPU wheels come from when the configured package index has none.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
BIN := $(VENV)/bin
# The repository root must never be importable: a folder named `kernels` on sys.path breaks transformers.
export PYTHONSAFEPATH := 1

.PHONY: help setup setup-dev serve test test-full soak check lint lock docs figures clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | sort | expand -t 14

setup: ## Install Proxima into .venv (EXTRA=cuda on a GPU machine)
	@test -n "$(PYTHON)" || { echo "proxima setup: no python3 found; install Python 3.11" >&2; exit 1; }
	@$(PYTHON) scripts/setup.py --venv $(VENV) --extra $(EXTRA) --torch-index $(TORCH_INDEX)

setup-dev:
	@test -n "$(PYTHON)" || { echo "proxima setup: no python3 found; install Python 3.11" >&2; exit 1; }
	@$(PYTHON) scripts/setup.py --venv $(VENV) --dev --torch-index $(TORCH_INDEX)

serve: setup ## Install and serve: make serve ARGS="--port 8123"
	@exec $(BIN)/proxima serve $(ARGS)

test: check ## Install and run all checks and tests that fit in 12 minutes on two cores
	$(BIN)/pytest -m "not slow" -n 2 $(ARGS)

test-full: setup-dev ## The slow drills on top
	$(BIN)/pytest -m "slow" -n 2 $(ARGS)

soak: setup-dev ## Load the embedded model for MINUTES (2) with requests that end in every way; fails if anything grows
	$(BIN)/python scripts/soak.py --minutes $(MINUTES) $(ARGS)

check: setup-dev ## Lint, types, import rules, fresh locks and generated files
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python scripts/lock.py --check
	$(BIN)/python scripts/generate_docs.py --check
	$(BIN)/python scripts/generate_chart.py --check
	$(BIN)/python scripts/readme_figures.py --check

lock: setup-dev ## Resolve requirements/ again from pyproject.toml
	PATH=$(abspath $(BIN)):$$PATH $(BIN)/python scripts/lock.py --torch-index $(TORCH_INDEX)

docs: setup-dev ## Write the generated pages under docs/ and files of the chart, and the site of docs/ in build/site
	$(BIN)/python scripts/generate_docs.py
	$(BIN)/python scripts/generate_chart.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

figures: setup-dev ## Draw the pictures of README and docs again, and write README's figures (minutes)
	$(BIN)/python scripts/readme_figures.py
	$(BIN)/python scripts/benchmark_pictures.py
	$(BIN)/python scripts/lab_pictures.py
	$(BIN)/python scripts/live_pictures.py

clean: ## Remove the environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
