# fr: every command a developer or a curious user needs; `make help` lists them.
#   PYTHON=...   interpreter, 3.10 or newer; one that has torch lends it to .venv, else .venv gets its own
#   FAULT=...    what `make demo` injects
SHELL := bash
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

PYTHON ?= python3
VENV ?= .venv
FAULT ?= skip
JOBS ?= $(shell nproc)
BIN := $(VENV)/bin
export PATH := $(abspath $(BIN)):$(PATH)
export CMAKE_BUILD_PARALLEL_LEVEL ?= $(JOBS)

# What the installed package is built from.
SOURCES := $(shell find libfr python tools/frtrace tools/cmake CMakeLists.txt pyproject.toml -type f \
             -not -name '*.md' -not -path '*/__pycache__/*' 2>/dev/null)
# pip builds in the tree that `make test` completes, so that nothing is compiled twice. FR_WERROR=ON,
# as in CI: warnings are errors there, too.
SHARED_TREE := -C build-dir=build/dev -C "build.targets=fr;frtrace;_fr" \
  $(patsubst %,-C cmake.define.%=ON,FR_BUILD_TESTS FR_BUILD_EXAMPLES) \
  -C cmake.define.FR_WERROR=$(or $(FR_WERROR),OFF)
# A venv made from another interpreter than the one named on the command line is made anew.
NAMED := $(if $(filter command% environment%,$(origin PYTHON)),$(PYTHON))
ifneq ($(NAMED),)
ifneq ($(shell $(NAMED) -c 'import sys; print(sys.executable)' 2>/dev/null),$(file < $(VENV)/.made-by))
.PHONY: $(VENV)/.made-by
endif
endif

.PHONY: help
help:  ## List the targets
	@sed -nE 's/^([a-z -]+):[^#]*## (.*)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

.PHONY: setup
setup:  ## Install missing Debian packages (root or sudo)
	@tools/setup.sh $(PYTHON)

$(VENV)/.made-by: tools/make_venv.py | setup
	@PATH="$${PATH#*:}" $(PYTHON) tools/make_venv.py $(VENV) $(if $(NAMED),--borrow)

.PHONY: venv
venv: $(VENV)/.made-by  ## Make .venv with torch and the test tools

$(VENV)/.fr-installed: $(SOURCES) | setup $(VENV)/.made-by
	@echo "install: building fr into $(VENV)"
	@$(BIN)/pip --disable-pip-version-check install -qq --no-build-isolation --no-deps --force-reinstall \
	  $(SHARED_TREE) .
	@echo "install: building the adapter for the installed torch"
	@$(BIN)/python -m fr --build-adapter
	@touch $@

.PHONY: install
install: $(VENV)/.fr-installed  ## Build fr and install it into .venv

.PHONY: demo
demo: $(VENV)/.fr-installed  ## Four real ranks hang, frtrace names the culprit; FAULT=skip size op dtype kill exit sleep none
	@$(BIN)/python tools/demo.py $(FAULT)

.PHONY: test
test: $(VENV)/.fr-installed build/dev/CMakeCache.txt  ## All tests: C++, Python, end to end
	@cmake --build --preset dev
	@$(BIN)/python tools/run_tests.py dev python real e2e

.PHONY: test-nccl
test-nccl: $(VENV)/.fr-installed  ## The real libnccl.so.2 without a GPU (fetches it, 300 MB)
	@$(BIN)/pip --disable-pip-version-check install -qq --no-deps --target build/nccl nvidia-nccl-cu12
	@FR_TEST_NCCL=$(abspath build/nccl/nvidia/nccl/lib/libnccl.so.2) $(BIN)/python -m pytest tests/python/test_nccl.py

# Where a GPU is lent, that machine needs the working tree and reaches nothing else: no .venv.
.PHONY: test-gpu
test-gpu:  ## Two ranks on one GPU, by PYTHON (CUDA build of torch, pybind11, scikit-build-core); ONLY=cases, KEEP=dir, FROM=source package
	@rm -rf build/gpu
	@$(PYTHON) -m pip --disable-pip-version-check wheel -qq --no-index --no-build-isolation --no-deps -w build/gpu $(or $(FROM),.)
	@$(PYTHON) tests/gpu/run.py --wheel build/gpu/*.whl $(if $(ONLY),--only $(ONLY)) $(if $(REHEARSE),--rehearse) \
	  $(if $(KEEP),--keep $(KEEP))

.PHONY: test-faults
test-faults: $(VENV)/.fr-installed  ## The fault table on real ranks, about 6 min; ROWS=words of rows
	@$(BIN)/python tests/faults/run.py $(ROWS)

# As root: namespaces, munge and sshd. Debian starts the services of packages that it installs where
# systemd runs; the tests start their own and end them.
CLUSTER_PACKAGES := slurm-wlm munge openssh-server openssh-client pdsh clustershell tmux
.PHONY: test-cluster
test-cluster: $(VENV)/.fr-installed  ## Two nodes on this machine: Slurm, ssh, pdsh, clush, kubectl's stand-in (root)
	@for package in $(CLUSTER_PACKAGES); do \
	  tools/setup.sh $(PYTHON) $$package || echo "test-cluster: no $$package: its tests are skipped"; \
	done
	@$(BIN)/python -m pytest -p no:cacheprovider tests/cluster $(if $(ONLY),-k "$(ONLY)")

# TORCH: interpreters that have torch, torch's wheels, its releases on PyPI, or all (which fetches
# 12 GB and keeps 3); PYTHONS: what the wheels are for.
RELEASES := 2.4.0 2.4.1 2.5.0 2.5.1 2.6.0 2.7.0 2.7.1 2.8.0 2.9.0 2.9.1 2.10.0 2.11.0 2.12.0 \
  2.12.1 2.13.0 2.14.0 2.14.1 2.15.0
TORCH ?= $(if $(ARCH),,$(wildcard $(BIN)/python))
.PHONY: wheel
wheel: | setup  ## Source package, wheels for glibc 2.28 and newer; ARCH=aarch64, PYTHONS=..., TORCH=...
	@$(PYTHON) tools/make_wheels.py $(addprefix --arch ,$(ARCH)) $(addprefix --torch ,$(TORCH:all=$(RELEASES))) \
	  $(addprefix --python ,$(or $(PYTHONS),$(NAMED)))

.PHONY: static
static: | setup  ## One frtrace that runs in any image, TARGET=x86_64-linux-musl
	@$(PYTHON) tools/make_wheels.py --static --target $(or $(TARGET),x86_64-linux-musl)

.PHONY: stress
stress: build/dev/CMakeCache.txt  ## Writers stopped and killed: torn records, true counts; TIME=60
	@cmake --build --preset dev --target fr_tests
	@FR_STRESS_S=$(or $(TIME),60) $(if $(SEED),FR_STRESS_SEED=$(SEED)) build/dev/tests/unit/fr_tests "stress:*"

.PHONY: build-asan build-tsan
build-asan build-tsan: build-%: build/%/CMakeCache.txt
	@cmake --build --preset $*

.PHONY: asan tsan
asan tsan: %: build-%  ## C++ tests under sanitizers
	@$(BIN)/python tools/run_tests.py $@

# The newest clang; with its runtime it brings libFuzzer.
FUZZ_CXX ?= $(shell for c in clang++ clang++-{20..14}; do command -v $$c && break; done)
FUZZ_TARGETS := fuzz_fr fuzz_ring fuzz_pickle fuzz_json fuzz_summary fuzz_net

.PHONY: fuzz
fuzz: $(VENV)/.made-by  ## Fuzz the loaders, FUZZ_SECONDS=60 each; installs clang
	@tools/setup.sh $(PYTHON) clang "libclang-rt-dev|libclang-rt-14-dev"
	@cmake --preset fuzz -DCMAKE_CXX_COMPILER=$(or $(FUZZ_CXX),clang++) >/dev/null
	@cmake --build build/fuzz --target $(FUZZ_TARGETS)
	@tests/fuzz/run.sh build/fuzz

.PHONY: fuzz-cli
fuzz-cli: build/asan/CMakeCache.txt $(VENV)/.made-by  ## Damaged directories through frtrace under ASan, TIME=60
	@cmake --build --preset asan --target frtrace
	@$(BIN)/python tests/fuzz/cli.py --frtrace build/asan/tools/frtrace/frtrace \
	  --seconds $(or $(TIME),60) $(if $(SEED),--seed $(SEED))

.PHONY: bench
bench: build/bench/CMakeCache.txt $(VENV)/.fr-installed  ## Measure: record, Python calls, all_reduce, dump
	@cmake --build --preset bench
	@cmake --build --preset bench --target run-benchmarks

.PHONY: score
score: build/release/CMakeCache.txt $(VENV)/.made-by  ## Score frtrace and torchfrtrace on simulated hangs, CASES=2000
	@cmake --build --preset release --target frtrace hangsim
	@$(BIN)/python tools/hangsim/score.py --frtrace build/release/tools/frtrace/frtrace \
	  --hangsim build/release/tools/hangsim/hangsim --count $(or $(CASES),2000)
	@$(BIN)/python tools/hangsim/score.py --frtrace build/release/tools/frtrace/frtrace \
	  --hangsim build/release/tools/hangsim/hangsim --below --count $(or $(CASES),2000)
	@$(BIN)/python tools/hangsim/score.py --frtrace build/release/tools/frtrace/frtrace \
	  --hangsim build/release/tools/hangsim/hangsim --half all --columns frtrace \
	  --count $(or $(CASES),2000)

.PHONY: ablate
ablate: build/release/CMakeCache.txt $(VENV)/.made-by  ## What each decision of the engine is worth, 45 min; CASES=100, ONLY=word
	@cmake --build --preset release --target hangsim
	@$(BIN)/python tests/ablate/ablate.py --count $(or $(CASES),100) $(if $(ONLY),--only $(ONLY)) \
	  --out build/ablate/table.txt

.PHONY: differ
differ: build/release/CMakeCache.txt $(VENV)/.made-by  ## Where a small checker of tests/differ and frtrace differ; CASES=100
	@cmake --build --preset release --target frtrace hangsim
	@$(BIN)/python tests/differ/differ.py --count $(or $(CASES),100)

.PHONY: bench-frtrace
bench-frtrace: $(VENV)/.made-by  ## Measure frtrace on large sets, MOST=ranks, beside torchfrtrace; ONLY=torch, fr or summaries
	@cmake --preset release -DFR_BUILD_BENCH=ON >/dev/null
	@cmake --build --preset release --target frtrace hangsim node_summaries live_screen
	@build/release/tests/bench/live_screen
	@$(BIN)/python tests/bench/bench_frtrace.py --frtrace build/release/tools/frtrace/frtrace \
	  --hangsim build/release/tools/hangsim/hangsim --torch-python $(BIN)/python \
	  --node-summaries build/release/tests/bench/node_summaries \
	  $(if $(MOST),--most $(MOST)) $(if $(ONLY),--only $(ONLY))

build/dev/CMakeCache.txt: | $(VENV)/.fr-installed
build/%/CMakeCache.txt: CMakePresets.json | setup $(VENV)/.made-by
	@cmake --preset $*

.PHONY: lint
lint: $(VENV)/.made-by  ## Check the format of all code, the lengths of files and functions, and their branches
	@$(BIN)/python -m ruff --version >/dev/null 2>&1 || $(BIN)/pip install -qq ruff
	@$(BIN)/clang-format --version >/dev/null 2>&1 || $(BIN)/pip install -qq clang-format==19.1.7
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/python tools/check_lengths.py
	@$(BIN)/python -c "import lizard" 2>/dev/null || $(BIN)/pip install -qq lizard
	@$(BIN)/python tools/check_branches.py
	@git ls-files -co --exclude-standard '*.cpp' '*.hpp' | xargs $(BIN)/clang-format --dry-run -Werror

.PHONY: docs
docs: $(VENV)/.fr-installed  ## Paste output of runs into the documents; SCORES=1: scores, too; ONLY=word
	@$(BIN)/python tools/docs.py $(if $(SCORES),--scores) $(if $(ONLY),--only $(ONLY))

.PHONY: clean
clean:  ## Remove everything that was built, .venv included
	rm -rf build $(VENV) fr-dumps .pytest_cache .ruff_cache
