# `make demo` races strategies on embedded data; `make test` runs the tests; both set up what they need first.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEMO_READY := $(VENV)/.demo-ready
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable

.PHONY: setup demo test test-all lint servers docs clean

setup: $(READY)

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(READY): pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) '.[tensorflow,torch,mpi,hdfs,s3,tables,dev]'
	@touch $@ $(DEMO_READY)

# The demo starts sooner: it needs the engines only.
$(DEMO_READY): pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) '.[tensorflow,torch,mpi]'
	@touch $@

demo: $(DEMO_READY)
	@$(BIN)/velodrome race src/velodrome/example_files/demo.yaml --name demo --runs .demo

lint: $(READY)
	$(BIN)/ruff check src tests benchmarks docs
	$(BIN)/mypy
	$(BIN)/lint-imports

# The tests have no network: what their HDFS and their environment of old packages consist of is downloaded before them.
servers: $(READY)
	@$(BIN)/python tests/servers/hdfs.py || echo "HDFS could not be prepared: its tests will be skipped"
	@$(BIN)/python tests/servers/environment.py || echo "packages could not be downloaded: tests of a slim worker will be skipped"

test: lint servers
	$(BIN)/python -m pytest -m "not slow" --cov --cov-fail-under=90

test-all: lint servers
	$(BIN)/python -m pytest --cov --cov-fail-under=90

docs: $(READY)
	$(BIN)/python docs/generate_reference.py

clean:
	rm -rf $(VENV) .demo build dist
