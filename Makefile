# Everything is set up in .venv; a second call finds it there, until pyproject.toml or constraints.txt change.
#   make demo     fit two real training steps into half of their memory; writes demo/report.html
#   make test     the tests          make check    what CI runs: lint, types, layers, tests, docs
#   PYTHON=...       the Python >= 3.11 that makes .venv (python3)
#   TORCH_INDEX=...  URL of an index to take torch from (pip's own), e.g. the one of PyTorch's CPU builds
#   JOBS=...         processes that run the tests (2)
#   ARGS=...         more arguments of the tool: make test ARGS='tests/unit -k arena'
PYTHON ?= python3
TORCH_INDEX ?=
JOBS ?= 2
ARGS ?=

BIN := .venv/bin
STAMP := .venv/ready-$(shell cat pyproject.toml constraints.txt | cksum | cut -d ' ' -f 1)
EXTRAS := bench,test,check,docs
PIP := $(BIN)/python -m pip --disable-pip-version-check
PIP_INSTALL := $(PIP) install $(if $(CI),--quiet) --constraint constraints.txt
# one thread a process: the tests count bytes and compare bits, several processes share the cores
ONE_THREAD := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1

.PHONY: help venv demo test lint format types layers docs check recompile clean

help:
	@sed -n 's/^#   /  /p' Makefile

venv: $(STAMP)

$(STAMP):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "peakfold needs Python >= 3.11; make PYTHON=/path/to/python3 names one" >&2; exit 1; }
	@echo "setting up .venv: torch and the rest (some minutes, once)"
	$(PYTHON) -m venv .venv
	$(PIP_INSTALL) hatchling editables
	$(PIP_INSTALL) --no-deps $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch
	$(PIP_INSTALL) --no-build-isolation --editable '.[$(EXTRAS)]'
	@rm -f .venv/ready-*
	@touch $@

demo: $(STAMP)
	$(BIN)/peakfold demo --out demo $(ARGS)

test: $(STAMP)
	$(ONE_THREAD) $(BIN)/python -m pytest --numprocesses $(JOBS) $(ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(STAMP)
	$(BIN)/mypy

layers: $(STAMP)
	$(BIN)/lint-imports --no-logo

docs: $(STAMP)
	$(ONE_THREAD) $(BIN)/sphinx-build --quiet --fail-on-warning --keep-going -b doctest docs docs/_build/doctest
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going -b html docs docs/_build/html

check: lint types layers test docs

# numba keeps compiled functions by their own file; after an edit in one that others inline, compile all anew
recompile:
	find src -name '*.nbi' -delete -o -name '*.nbc' -delete

clean:
	rm -rf .venv docs/_build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
