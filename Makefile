# Two commands for a fresh machine: `make demo` and `make test`. Both set up what they need and are quick the second time.
PYTHON ?= python3
PIP_ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
export HF_HUB_OFFLINE ?= 1

.PHONY: help setup demo picture tables test test-slow lint bench clean

help:
	@echo "make demo       race one token at a time against several, on the built-in model"
	@echo "make test       lint, types and tests"
	@echo "make test-slow  the long checks, too"
	@echo "make bench      every decoder against plain decoding and transformers' generate; takes an hour"
	@echo "make picture    draw docs/race.svg anew"
	@echo "make tables     fill the tables of the docs from the settings and bench/results"
	@echo "make clean      remove the virtual environment"
	@echo "On a machine without a GPU, a CPU-only torch is a tenth of the download: see README.md, PIP_ARGS."

# The stamp is the last thing made, so that an interrupted set-up starts again.
$(VENV)/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "Python 3.11 or later is needed, this is " + sys.version' \
		|| { echo "Give another interpreter: make PYTHON=python3.11 ..."; exit 2; }
	@echo "setting up $(VENV); this takes a minute or two"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) -c constraints.txt -e '.[dev,serve,train,bench]'
	@$(BIN)/python -c 'from stridelm.model.native.library import library; library()' 2>/dev/null \
		|| echo "the native CPU backend cannot be built here (it needs g++ and AVX2): torch will serve"
	@touch $@

setup: $(VENV)/.ready

# Sums: there the converted model knows well what it is going to say. In float32, where a pass over several tokens costs
# little more than one over one; the native backend's plain step leaves less to win (docs/performance.md).
define DEMO_PROMPT
A cinema has 14 rows of 22 seats. On Monday 195 of the seats were taken. How many were free? Show every step.
endef

demo: setup
	$(BIN)/stridelm generate --race --backend torch --max-tokens 160 "$(strip $(DEMO_PROMPT))"

picture: setup
	$(BIN)/python docs/race_picture.py "$(strip $(DEMO_PROMPT))"

tables: setup
	$(BIN)/python docs/fill_tables.py

test: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/python -m pytest

test-slow: setup
	$(BIN)/python -m pytest -m 'slow or not slow'

lint: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/pyright

bench: setup
	$(BIN)/python bench/acceptance_and_speed.py --json bench/results/acceptance_and_speed.json
	$(BIN)/python bench/coupling.py
	$(BIN)/python bench/decoders.py
	$(BIN)/python bench/memory.py --json bench/results/memory.json

clean:
	rm -rf $(VENV)
