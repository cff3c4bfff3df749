# `make demo` and `make test` set up everything they need on a machine that has Python 3.11 or newer.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
export PIP_DISABLE_PIP_VERSION_CHECK := 1
unexport PYTHONDONTWRITEBYTECODE  # tests start hundreds of processes, and each would compile the package again

.PHONY: help setup trainers dist install-check demo test test-all faults simulate fuzz bounds mistakes attacks audit lint types check docs bench bench-peers clean

help:            ## list the targets
	@grep -E '^[a-z-]+: .*##|^[a-z-]+:  +##' Makefile | sed -E 's/:[^#]*##/\t/' | expand -t 14

setup: $(READY)  ## make .venv with the pinned versions; HASHES=1 compares checksums (Python 3.11, x86-64 Linux)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed") if sys.version_info < (3, 11) else None'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(if $(HASHES),$(BIN)/python -m pip install --quiet --no-deps --require-hashes --requirement constraints-hashes.txt)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

# These ask for other versions of torch than ours, or for far more than is imported here.
TRAINERS := jsonargparse==4.53.0 litdata==0.2.76 litgpt==0.5.13 torchtitan==0.3.0 mosaicml-streaming catalogue brotli zstd python-snappy cramjam webdataset braceexpand pylance lance-namespace lance-namespace-urllib3-client
trainers: setup  ## install trainers and loggers that `make test-all` tests where they are: .ci/nightly does so
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --requirement requirements-trainers.txt
	$(BIN)/python -m pip install --quiet --no-deps $(TRAINERS)

dist: setup      ## the wheel and the source archive, in build/dist
	$(BIN)/python -m pip install --quiet build
	rm -rf build/dist
	$(BIN)/python -m build --outdir build/dist

install-check:   ## build both, install each into a clean environment of PYTHON, and try it there
	$(PYTHON) tests/install.py build/dist

demo: setup      ## text to a trained model in a minute, by way of a store too, and a page to look at it all
	rm -rf build/demo
	$(BIN)/python examples/demo.py --out build/demo

# Three at a time on two cores: many tests wait, for a server, a deadline or another process.
PYTEST := $(BIN)/python -m pytest -n 3 --dist loadgroup --no-loadscope-reorder

test: setup      ## run the tests that every change waits for: at most five minutes on two idle cores
	$(PYTEST)

test-all: setup  ## run all tests at full length: about twelve minutes
	$(PYTEST) -m ""

faults: setup    ## the long form: a fault at every system call, 50 rounds of all that is killed; about an hour
	FAULT_POINTS=all KILL_ROUNDS=50 $(PYTEST) -m "" --timeout 3000 tests/faults tests/e2e/storage tests/e2e/test_prepare_ray.py

simulate: setup  ## thousands of random cluster histories against a plain reference
	$(BIN)/python tests/simulation/run.py --histories 5000 --seed 0

FUZZ_SECONDS ?= 600
fuzz: setup      ## damaged inputs of every kind for FUZZ_SECONDS; what is found is kept in build/fuzz
	$(BIN)/python tests/fuzz/run.py --seconds $(FUZZ_SECONDS) --first $${FUZZ_FIRST:-0} --keep build/fuzz

# Numba's cache does not tell code with bounds checks from code without: each has a folder of its own.
BOUNDS_TESTS ?= tests
bounds: setup    ## all tests with every index of every array checked in the kernels
	NUMBA_BOUNDSCHECK=1 NUMBA_CACHE_DIR=$(CURDIR)/build/bounds $(PYTEST) -m "" --timeout 1200 $(BOUNDS_TESTS)

mistakes: setup  ## write down again what likely mistakes are told, in tests/mistakes/messages.md: read it aloud
	$(BIN)/python -m pytest -n 0 tests/mistakes --record

attacks: setup   ## every class of attack, some 15,000 cases, with a count; what is found is kept in build/attacks
	$(BIN)/python tests/attacks/run.py

audit: setup     ## dependencies, licences, imports and what a wheel would hold; asks no network
	$(BIN)/python tests/fuzz/audit.py

lint: setup      ## style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup     ## types
	$(BIN)/mypy

check: lint types audit test  ## what CI runs

docs: setup      ## the documentation as a site, in build/site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

bench: setup     ## measure against C loops; prints the bars and whether they hold
	$(BIN)/python bench/store.py
	$(BIN)/python bench/permutation.py
	$(BIN)/python bench/plan.py
	$(BIN)/python bench/loader.py
	$(BIN)/python bench/engines.py
	$(BIN)/python bench/stream.py
	$(BIN)/python bench/packing.py
	$(BIN)/python bench/balance.py
	$(BIN)/python bench/locality.py
	$(BIN)/python bench/prepare.py
	$(BIN)/python bench/remote.py
	$(BIN)/python bench/page.py

bench-peers: setup  ## measure beside other loaders, each installed into an environment of its own; writes docs/benchmarks/peers.md
	$(BIN)/python bench/peers/run.py

clean:           ## remove what these targets made
	rm -rf $(VENV) build bench/.data bench/.build .pytest_cache .mypy_cache .ruff_cache .hypothesis
