PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

PEERS := bench/peers/.venv/.ready

.PHONY: help setup lint quickstart test test-fast triton bench results torture

help:
	@echo "make quickstart  install into .venv, download MNIST, train five methods on Split MNIST, print one table and write a report"
	@echo "make test        install into .venv, then lint, type-check and run the whole test suite"
	@echo "make test-fast   the same without the slow tests: for the daily loop"
	@echo "make triton      download Triton, 1 GB, whose interpreter then runs the GPU kernels' tests"
	@echo "make bench       install into .venv, and peers beside it, then measure speed: bench/RESULTS.md, two hours"
	@echo "make results     install into .venv, then write RESULTS.md from the run records in results/"
	@echo "make torture     run the fault campaign for TORTURE_MINUTES=20 and write RELIABILITY.md"
	@echo "make setup       install into .venv only: the command is $(BIN)/cclfp"

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "cclfp needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version). Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 2; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[test]'
	@touch $(READY)

quickstart: setup
	$(BIN)/cclfp run finetune,er,ccl-fp,ccl-fp+,joint split-mnist --scenario class --seeds 5 --engine eager
	$(BIN)/cclfp report --out build/report

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(BIN)/mypy results  # by itself: bench has a render.py too
	$(BIN)/pytest -n auto --hypothesis-profile=ci  # the same examples every time; plain pytest looks for new ones

test-fast: lint
	$(BIN)/pytest -n auto --hypothesis-profile=ci -q -m "not slow and not mnist and not gpu"

# By itself, and not in .venv: CUDA builds of torch include Triton, and the compiler of others would notice it.
triton: build/triton

build/triton: | $(READY)
	rm -rf $@.new
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target $@.new 'triton>=3.7,<4'
	mv $@.new $@

$(PEERS): bench/peers/requirements.txt constraints.txt
	PYTHON=$(PYTHON) bench/peers/install.sh
	@touch $(PEERS)

bench: setup $(PEERS)
	$(BIN)/python bench/measure.py
	$(BIN)/python bench/render.py

results: setup
	$(BIN)/python results/render.py

TORTURE_MINUTES ?= 20
TORTURE_SEED ?=

torture: setup
	$(BIN)/python -m torture --minutes $(TORTURE_MINUTES) $(addprefix --seed ,$(TORTURE_SEED))
