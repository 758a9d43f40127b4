# Everything from a fresh clone: `make study` trains and reports, `make test` proves it works.
# Needs python3 >= 3.11, make and a package index. Uses uv where it is installed, pip otherwise.

PYTHON ?= python3
VENV ?= .venv
OUT ?= runs
WORKERS ?=
# Ray and submitit leave processes to the end of the interpreter.
CLUSTER_WARNINGS = -W ignore::ResourceWarning -W ignore::pytest.PytestUnraisableExceptionWarning
TEST_ARGS ?= -n auto --dist worksteal

BIN = $(VENV)/bin
# A comma would end an argument of a call.
comma := ,
UV ?= $(shell command -v uv 2>/dev/null)
# A folder of wheels that is offered to pip is offered to uv too.
export UV_FIND_LINKS ?= $(PIP_FIND_LINKS)
# uv then picks the build of torch that fits the machine's driver; off where wheels are offered by hand.
TORCH_BACKEND ?= $(if $(UV_FIND_LINKS),,auto)
# For pip: an extra index with CPU builds of torch, to avoid the CUDA packages.
TORCH_INDEX ?=

export PIP_DISABLE_PIP_VERSION_CHECK = 1

.PHONY: help setup study report test test-cluster mutants bench gpu docs lint format check clean
.DEFAULT_GOAL := help

help:
	@echo "make study   set up, train and compare the variants, write $(OUT)/reports/quickstart/report.html"
	@echo "make test    set up and run the tests"
	@echo "make test-cluster   the tests that start a Ray cluster or jobs of submitit, about 800 MB and some minutes"
	@echo "make mutants make every seeded mistake and see that its test fails, some minutes"
	@echo "make setup   set up only, in $(VENV)"
	@echo "make bench   run the benchmarks: one JSON line per case, then one table; minutes (BENCH_ARGS=--quick)"
	@echo "make gpu     tests and measurements that need a GPU, nine minutes; writes $(OUT)/gpu/page"
	@echo "make docs    build the documentation site in build/site; broken links fail"
	@echo "make lint    format check, lint, types, floors, spelling"
	@echo "make format  format and fix what can be fixed"
	@echo "make check   lint and test"
	@echo "make clean   remove $(VENV) and caches (never $(OUT))"

ACTIVATE = "to use qkvary in this shell: source $(BIN)/activate"

setup: $(VENV)/.setup

# One recipe for both installers; $(1) is what to install.
ifneq ($(UV),)
define install
VIRTUAL_ENV=$(VENV) $(UV) pip install $(if $(TORCH_BACKEND),--torch-backend=$(TORCH_BACKEND)) -c constraints.txt $(1)
endef
else
define install
$(BIN)/python -m pip install --no-compile $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) -c constraints.txt $(1)
endef
endif

# What training, studies and pages need; the tests need more.
$(VENV)/.train: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "qkvary needs Python 3.11 or newer, this is " + sys.version.split()[0])'
	@echo "setting up $(VENV)"
ifneq ($(UV),)
	@$(UV) venv -q --allow-existing -p $(PYTHON) $(VENV)
else
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -qq --upgrade "pip>=25.1"
endif
	@$(call install,-e ".[train]")
	@touch $@

$(VENV)/.setup: $(VENV)/.train
	@$(call install,-e ".[train$(comma)data]" --group test --group bench)
	@touch $@
	@echo $(ACTIVATE)

$(VENV)/.lint: $(VENV)/.setup
	@$(call install,--group lint)
	@touch $@

$(VENV)/.docs: $(VENV)/.setup
	@$(call install,--group docs)
	@touch $@

study: $(VENV)/.train
	@echo $(ACTIVATE)
	@$(BIN)/qkvary study quickstart --out "$(OUT)" $(if $(WORKERS),--workers $(WORKERS))
	@echo $(ACTIVATE)

report: $(VENV)/.train
	@$(BIN)/qkvary report quickstart --out "$(OUT)"

test: $(VENV)/.setup
	@$(BIN)/python -m pytest $(TEST_ARGS)

test-cluster: $(VENV)/.setup
	@$(call install,-e ".[train$(comma)data$(comma)cluster$(comma)track]" --group test)
	@$(BIN)/python -m pytest -n 0 -m cluster $(CLUSTER_WARNINGS)

mutants: $(VENV)/.setup
	@$(BIN)/python tests/mutants/run.py

bench: $(VENV)/.setup
	@PYTHONPATH=benchmarks$${PYTHONPATH:+:$$PYTHONPATH} $(BIN)/python benchmarks/timing/every.py $(BENCH_ARGS)

gpu: $(VENV)/.setup
	@$(BIN)/python benchmarks/gpu/run.py --out "$(OUT)/gpu" $(GPU_ARGS)
	@$(BIN)/python benchmarks/gpu/page.py "$(OUT)/gpu/records.jsonl" --to "$(OUT)/gpu/page"

docs: $(VENV)/.docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "build/site/index.html"

lint: $(VENV)/.lint
	@$(BIN)/ruff format --check --quiet
	@$(BIN)/ruff check --quiet
	@$(BIN)/pyright --pythonpath $(BIN)/python
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/codespell

format: $(VENV)/.lint
	@$(BIN)/ruff check --fix --quiet || true
	@$(BIN)/ruff format --quiet

check: lint test

clean:
	@rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	@find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
