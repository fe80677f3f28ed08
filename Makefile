# Every target does its own set-up: all that is needed is make, pip and Python 3.11 or newer.
#   make demo        compile a matmul, a convolution and a reduction for this CPU, and compare them with NumPy
#   make test        lint, format, types, import contracts, and the tests (ten minutes to half an hour on two cores)
#   make test-long   the long test programmes, every operator on the CUDA emulator among them
#   make bench       the benchmarks against other libraries (installs torch and scipy; hours)

PYTHON ?= python3
WORKERS ?= 2
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --constraint constraints.txt
INPUTS := pyproject.toml constraints.txt

.DEFAULT_GOAL := help
.PHONY: help demo test test-long lint bench clean
.NOTPARALLEL:
.SUFFIXES:

help:
	@sed -n 's/^#   //p' Makefile

demo: $(VENV)/.installed
	@$(BIN)/python examples/demo.py

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint
	$(BIN)/python -m pytest -n $(WORKERS) -m "not long"

test-long: $(VENV)/.installed-dev
	HYPOTHESIS_PROFILE=long $(BIN)/python -m pytest -n $(WORKERS)

bench: $(VENV)/.installed-bench
	$(BIN)/python -m bench

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis build dist

# A stamp is newer than everything that decides what its environment holds; a failed set-up leaves none.
$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; say: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.installed: $(VENV)/.created $(INPUTS)
	$(INSTALL) --editable .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(INSTALL) --editable '.[cuda,dev,rocm]'
	@touch $@

$(VENV)/.installed-bench: $(VENV)/.installed
	$(INSTALL) --editable '.[bench]'
	@touch $@
