# `make demo` races strategies on embedded data; `make test` runs the tests; both set up what they need first.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: setup demo test test-all lint types docs clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[tensorflow,torch,mpi,hdfs,s3,dev]'
	@touch $@

demo: $(READY)
	@$(BIN)/velodrome race examples/demo.yaml --name demo --runs .demo

lint: $(READY)
	$(BIN)/ruff check src tests benchmarks docs
	$(BIN)/mypy

test: lint
	$(BIN)/python -m pytest -m "not slow" --cov --cov-fail-under=90

test-all: lint
	$(BIN)/python -m pytest --cov --cov-fail-under=90

docs: $(READY)
	$(BIN)/python docs/generate_reference.py

clean:
	rm -rf $(VENV) .demo build dist
