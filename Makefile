# `make demo` and `make test` set up everything they need on a machine that has Python 3.11 or newer.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help setup demo test faults lint types check bench clean

help:            ## list the targets
	@grep -E '^[a-z-]+: .*##|^[a-z-]+:  +##' Makefile | sed -E 's/:[^#]*##/\t/' | expand -t 14

setup: $(READY)  ## make .venv with the pinned versions

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed") if sys.version_info < (3, 11) else None'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: setup      ## text to a trained model in a minute; then a store: look at it, load shuffled batches, resume
	$(BIN)/python examples/train_stream.py
	$(BIN)/python examples/demo.py

test: setup      ## run the tests
	$(BIN)/python -m pytest -n 2 --dist loadgroup

faults: setup    ## the long form of what is killed and cut: 50 rounds of each, in about half an hour
	KILL_ROUNDS=50 $(BIN)/python -m pytest -n 2 --dist loadgroup --timeout 3000 tests/faults tests/e2e/storage tests/e2e/test_prepare_ray.py

lint: setup      ## style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup     ## types
	$(BIN)/mypy

check: lint types test  ## what CI runs

bench: setup     ## measure against C loops; prints the bars and whether they hold
	$(BIN)/python bench/store.py
	$(BIN)/python bench/permutation.py
	$(BIN)/python bench/loader.py
	$(BIN)/python bench/stream.py
	$(BIN)/python bench/packing.py
	$(BIN)/python bench/locality.py
	$(BIN)/python bench/prepare.py
	$(BIN)/python bench/remote.py

clean:           ## remove what these targets made
	rm -rf $(VENV) demo-store demo-text bench/.data bench/.build .pytest_cache .mypy_cache .ruff_cache .hypothesis
