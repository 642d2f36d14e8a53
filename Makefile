# Every target first makes what it needs: a fresh clone and python3.11 or newer are enough, on macOS and on Linux.

VENV   ?= .venv
# The newest that really runs (a name on PATH may be a version manager's stand-in); or say PYTHON=...
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do \
	"$$p" -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$p" && break; done)

ifeq ($(shell uname -s),Linux)
# MLX for the CPU, or BACKEND=cuda. On macOS the base dependency already brings Metal.
BACKEND ?= cpu
# MLX's Linux wheel carries the slow reference BLAS; put OpenBLAS before it where there is one. Nothing depends on it.
OPENBLAS := $(firstword $(wildcard /usr/lib/*/openblas-pthread/libopenblas.so.0))
endif

PY  := $(VENV)/bin/python
RUN := $(if $(OPENBLAS),LD_PRELOAD=$(OPENBLAS) )$(PY)
PIP  = $(PY) -m pip install -qq --disable-pip-version-check -c constraints.txt

.DEFAULT_GOAL := help
.PHONY: help demo bench setup test test-slow lint types check format clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: $(VENV)/.use  ## the whole story on the embedded pair, offline
	@$(RUN) -m diversed_mlx.cli.main demo

DRAFT  ?= 1b
TARGET ?= 8b
bench: $(VENV)/.use  ## measure beside mlx-lm on DRAFT=... and TARGET=... (alias, folder or Hub id)
	@$(RUN) benchmarks/bench.py --draft $(DRAFT) --target $(TARGET)

setup: $(VENV)/.dev  ## the environment with everything the checks need

test: $(VENV)/.dev  ## all tests but the slow ones
	@$(RUN) -m pytest -q -m "not slow"

test-slow: $(VENV)/.dev  ## the slow tests
	@$(RUN) -m pytest -q -m slow

lint: $(VENV)/.dev  ## format and lint, changing nothing
	@$(PY) -m ruff format --check .
	@$(PY) -m ruff check .

types: $(VENV)/.dev  ## type check
	@PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(PY) -m pyright --pythonpath $(PY)

check: lint types test  ## what CI runs: format, lint, types, tests

format: $(VENV)/.dev  ## format, and mend what the linter can
	@$(PY) -m ruff check --quiet --fix-only .
	@$(PY) -m ruff format .

clean:  ## remove the environment, caches and builds
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Two stamps, two sizes: using the library needs neither torch nor the tools.
$(PY):
	@test -n "$(PYTHON)" || { echo "needs python3.11 or newer with venv; name one with PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.use: pyproject.toml constraints.txt | $(PY)
	@echo "installing into $(VENV) (once, a minute or so)"
	@$(PIP) -e .$(BACKEND:%=[%])
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(PY)
	@echo "installing into $(VENV), with the tools, PyTorch and matplotlib (once, a few minutes)"
	@$(PIP) -e ".[dev,torch,plots$(BACKEND:%=,%)]"
	@touch $@ $(VENV)/.use
