# Everything starts here: `make help`.
.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# A module run with -m must not put the root on sys.path, where our folders would hide others' packages.
export PYTHONSAFEPATH := 1
STAMP := $(VENV)/.installed
DEMO_STAMP := $(VENV)/.installed-for-demo
PIP_INSTALL := $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check

.PHONY: help
help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

$(STAMP): pyproject.toml
	@echo "installing into $(VENV): some minutes"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) -e '.[dev]'
	@touch $@

.PHONY: install
install: $(STAMP) ## make .venv and install the project with everything that developing needs

# `make demo` brings what the demo needs and no more, unless all is there already.
$(DEMO_STAMP): pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@test $(STAMP) -nt pyproject.toml || { echo "installing what the demo needs into $(VENV)"; \
		$(PIP_INSTALL) -e '.[demo]'; }
	@touch $@

.PHONY: demo
demo: $(DEMO_STAMP) ## train a student, kill a teacher on the way, show what happened (< 3 min)
	$(BIN)/edl demo

.PHONY: test
test: install ## rules, properties, codecs, public APIs and one short mesh (5 min)
	$(BIN)/python tests/run.py test

.PHONY: test-system
test-system: install ## real processes and faults, trainings, browser, docs, deploy (15 min)
	$(BIN)/python tests/run.py test-system

.PHONY: nightly
nightly: install ## the same tests with the full counts (hundreds of kills)
	$(BIN)/python tests/run.py nightly

N ?= 10
.PHONY: flakes
flakes: install ## `make test` N=10 times, while cores are kept busy and random processes suspended
	$(BIN)/python tests/flakes.py --runs $(N) --busy 2 --stall

.PHONY: coverage
coverage: install ## line and branch coverage of both tiers, child processes included, by folder
	$(BIN)/python tests/measure_coverage.py

.PHONY: mutants
mutants: install ## seeded mutants of the ledger and of flow control, and which of them tests kill
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -e '.[mutants]'
	$(BIN)/python tests/mutants.py

.PHONY: tables
tables: install ## simulate the papers' experiments and write benchmarks/results/README.md
	$(BIN)/python -m edl.benchmarks.paper

.PHONY: interop
interop: install ## tests against third-party clients and servers, which it installs in .interop
	$(BIN)/python tests/run.py interop

.PHONY: gpu
gpu: ## teachers, readers and students on this machine's GPU (tests/gpu/README.md)
	tests/gpu/python.sh tests/run.py gpu

SERVING_ENV ?= .venv-serving
.PHONY: serving-env
serving-env: install ## an environment in which Paddle Serving runs, in SERVING_ENV (GPU=1: for GPUs)
	$(BIN)/python -m edl.teacher.paddle_serving.environment $(SERVING_ENV) $(if $(filter 1,$(GPU)),--gpu)

.PHONY: docs
docs: install ## the site, in build/site; whatever is wrong in a page is an error (seconds)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

.PHONY: dist
dist: install ## sdist and wheel, in dist/
	$(BIN)/python -m build --no-isolation

.PHONY: constraints
constraints: install ## pin what the images install, and list the licences of it
	$(BIN)/python deploy/constraints/update.py

.PHONY: check
check: install ## format, lint, types, layers, names, generated stubs up to date
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/mypy docs/hooks/*.py
	PYTHONPATH=src $(BIN)/lint-imports
	$(BIN)/python tests/check_names.py
	$(MAKE) --no-print-directory stubs

.PHONY: format
format: install ## put the code in shape
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# By a virtual path: the generated files import each other as edl.proto.…
PROTOS := inference coordinator paddle_serving/pipeline paddle_serving/general_model
PROTOC = $(BIN)/python -m grpc_tools.protoc -Iedl/proto=proto --python_out=$(1) --pyi_out=$(1) \
	$(PROTOS:%=edl/proto/%.proto)

.PHONY: proto
proto: install ## generate the stubs in proto/ from the .proto files
	$(call PROTOC,src)

.PHONY: stubs
stubs: # whether the committed stubs are those of the .proto files
	@rm -rf build/stubs && mkdir -p build/stubs
	@$(call PROTOC,build/stubs)
	@cd build/stubs/edl/proto && for stub in $$(find * -type f); do \
		cmp -s $$stub $(CURDIR)/proto/$$stub || \
			{ echo "stale: $$stub; run 'make proto' and commit" >&2; exit 1; }; done
