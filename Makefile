# Everything runs in .venv, which `make setup` makes and every other target calls for.
#   make setup [PYTHON=python3.12]   make drive   make test   make check   make test-full   make clean
#   make bench: the step of the small preset, briefly, with report.html in out/bench
#   make test-oracles: our formats and adapters against other libraries themselves (430 MB more in .venv)
#   make test-fleet: `wmrt fleet` on Ray Serve itself (250 MB more in .venv)
#   make test-deploy [CRD=FILE]: the files in deploy/, with linter and schemas (165 MB more in .venv)
#   WMRT_NATIVE=0 make setup: without what is in C, for want of a C compiler (make test needs them)
#   make setup-system: Debian packages, as root, for tests that otherwise skip: Arm, AVX-512, a browser, HAProxy
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.wmrt-setup
ORACLES := .venv/.wmrt-oracles
FLEET := .venv/.wmrt-fleet
DEPLOY := .venv/.wmrt-deploy
NATIVE := kernels/native/_native.so
BUILT := kernels/native/_native*.so wmrt/core/_codec*.so

DRIVE_ARGS ?= --recipe nvfp4 --episodes 3 --out out/drive
BENCH_ARGS ?= --preset small --recipe nvfp4 --seconds 3 --no-cold --out out/bench
PYTEST_ARGS ?=

.PHONY: help setup setup-system drive bench test test-full test-oracles test-fleet test-deploy check format clean no-native

help:
	@sed -n '1,7s/^# *//p' $(MAKEFILE_LIST)

setup: $(STAMP)

# A change in C rebuilds the library alone, not the environment.
ifneq ($(WMRT_NATIVE),0)
setup: $(NATIVE)
else
setup: no-native
endif

# The same command builds the codec beside it, where Python's headers are.
$(NATIVE): setup.py $(wildcard kernels/native/*.[ch] wmrt/core/native/*.[ch]) | $(STAMP)
	$(BIN)/python setup.py -q build_ext --inplace
	@touch $@

no-native:
	@rm -f $(BUILT)

# torch comes first and by its exact version: asked for loosely it may bring gigabytes of CUDA.
# Nothing is built in isolation, so constraints.txt holds for the build tools too. --no-compile
# leaves bytecode to the first import: compiling all of torch ahead costs 20 s, of which few are used.
# The native library has a rule of its own; one that an earlier install left would stay in use.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	  echo "wmrt needs Python 3.10 or later, $(PYTHON) is $$($(PYTHON) -V 2>&1); run: make setup PYTHON=python3.11" >&2; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q --no-compile -c constraints.txt setuptools $$(grep -E '^torch==' constraints.txt)
	WMRT_NATIVE=0 $(BIN)/python -m pip install -q --no-compile -c constraints.txt --no-build-isolation -e '.[dev,drive]'
	@rm -f $(BUILT)
	@touch $@

# Kernels for other processors: an Arm compiler and emulator, an emulation of AVX-512. A second
# compiler for the C. A browser for the report of `wmrt drive` and the service's live page, with what
# drives it (45 MB in .venv, if that is there). For deploy/: the proxy, its certificates, and what
# reads systemd's units. For a network that can be cut: what makes one.
SYSTEM := gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user libsimde-dev gcc clang chromium \
  haproxy openssl systemd iproute2 util-linux

setup-system:
	@command -v apt-get >/dev/null || { echo "no apt-get here: install what these Debian packages hold: $(SYSTEM)" >&2; exit 2; }
	apt-get update -q
	DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $(SYSTEM)
	test ! -x $(BIN)/python || $(BIN)/python -m pip install -q -c constraints.txt playwright

drive: setup
	$(BIN)/wmrt drive $(DRIVE_ARGS)

bench: setup
	$(BIN)/wmrt bench $(BENCH_ARGS)

# Two processes for two cores; conftest.py keeps each at one thread. loadscope keeps the tests of a
# module, and so its fixtures, in one process. xdist would begin with the modules of most tests;
# conftest.py begins with the longest.
test: check
	$(BIN)/python -m pytest -m "not full" -n auto --dist loadscope --no-loadscope-reorder $(PYTEST_ARGS)

# Its result goes to benchmarks/full/ (tests/full_run.py), unless PYTEST_ARGS leaves tests out.
test-full: check
	WMRT_FULL=1 $(BIN)/python -m pytest -n auto --dist loadscope --no-loadscope-reorder $(PYTEST_ARGS)

# The other libraries live; `make test` knows them by the vectors in tests/golden. torch is installed
# already and held by constraints.txt, so neither brings another. One process: it counts agreements.
test-oracles: $(ORACLES)
	WMRT_ORACLES_JSON=benchmarks/oracles.json $(BIN)/python -m pytest tests/oracles \
	  tests/quant/test_golden.py tests/quant/test_golden_integers.py $(PYTEST_ARGS)

$(ORACLES): $(STAMP) constraints-oracles.txt
	WMRT_NATIVE=0 $(BIN)/python -m pip install -q --no-compile -c constraints.txt -c constraints-oracles.txt \
	  --no-build-isolation -e '.[oracles]'
	@touch $@

# Ray Serve with its replicas killed and replaced under load; elsewhere these tests skip.
test-fleet: $(FLEET)
	WMRT_FULL=1 $(BIN)/python -m pytest tests/service/test_fleet_ray.py tests/deploy/test_rayservice.py $(PYTEST_ARGS)

$(FLEET): $(STAMP) constraints-fleet.txt
	WMRT_NATIVE=0 $(BIN)/python -m pip install -q --no-compile -c constraints.txt -c constraints-fleet.txt \
	  --no-build-isolation -e '.[fleet]'
	@touch $@

# What runs the model elsewhere: units, proxy, manifests, images. CRD is KubeRay's definition of a
# RayService, ray-operator/config/crd/bases/ray.io_rayservices.yaml in its repository.
test-deploy: $(DEPLOY)
	WMRT_FULL=1 WMRT_RAYSERVICE_CRD=$(CRD) $(BIN)/python -m pytest tests/deploy $(PYTEST_ARGS)

$(DEPLOY): $(STAMP) constraints-deploy.txt
	WMRT_NATIVE=0 $(BIN)/python -m pip install -q --no-compile -c constraints.txt -c constraints-deploy.txt \
	  --no-build-isolation -e '.[deploy]'
	@touch $@

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# What can be made again. Keeps .venv, and data/, runs/ and out/, which are yours.
clean:
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .benchmarks
	rm -f $(BUILT)
	find wmrt/ kernels quant envs service tests tools -name __pycache__ -type d -prune -exec rm -rf {} +
