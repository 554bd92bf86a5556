# `make demo` races strategies on embedded data; `make test` runs the tests; both set up what they need first.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEMO_READY := $(VENV)/.demo-ready
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable

# Python keeps what it compiled, whatever the shell says: every process that the tests start would compile it again.
unexport PYTHONDONTWRITEBYTECODE

# Pytest processes: one per core and one more, because many tests wait for processes that they have started.
TESTERS ?= 3
PYTEST = $(BIN)/python -m pytest -n $(TESTERS) --dist loadgroup --no-loadscope-reorder

.PHONY: setup demo test durations samples test-all coverage lint servers engines slurm k8s wheelhouse docs clean

setup: $(READY)

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(READY): pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) '.[tensorflow,torch,mpi,hdfs,s3,tables,ui,serve,ray,k8s,dev]'
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

# The tests have no network: what their HDFS, their environment of old packages and their browser consist of is downloaded
# before them.
servers: $(READY)
	@$(BIN)/python tests/servers/hdfs.py || echo "HDFS could not be prepared: its tests will be skipped"
	@$(BIN)/python tests/servers/sshd.py || echo "sshd could not be installed: tests of hosts over SSH will be skipped"
	@$(BIN)/python tests/servers/environment.py || echo "packages could not be downloaded: tests of a slim worker will be skipped"
	@$(BIN)/python tests/servers/mxnet_environment.py || echo "MXNet could not be installed: its tests will be skipped"
	@$(BIN)/python tests/servers/browser.py || echo "no browser could be installed: tests of pages in one will be skipped"

test: lint servers
	$(PYTEST) -m "not slow and not samples"

# The same, and stores how long each group of tests took: the longest start first.
durations: servers
	$(PYTEST) -m "not slow and not samples" --store-durations

# The samples of every page of the documentation, and the examples of help texts; those of the README are part of
# `make test`.
samples: servers
	$(PYTEST) -m "samples and not slow" tests/docs tests/cli/test_help_examples.py

# Measuring every training process costs half as much again, so the quick tests do without.
coverage: lint servers
	$(PYTEST) -m "not slow and not samples" --cov --cov-fail-under=90

# Engines that the quick tests train with only where they are installed. Horovod is compiled, for some minutes.
engines: $(READY)
	@$(INSTALL) '.[deepspeed]' || echo "DeepSpeed could not be installed: its tests will be skipped"
	@$(BIN)/python tests/servers/jax_environment.py || echo "JAX could not be installed: its tests will be skipped"
	@$(BIN)/python tests/servers/horovod_environment.py torch tensorflow || echo "Horovod could not be built: its tests will be skipped"

# Slurm comes from Debian's packages.
slurm: $(READY)
	@$(BIN)/python tests/servers/slurm.py || echo "Slurm could not be installed: its tests will be skipped"

# Kubernetes is compiled from Debian's source package, for 10 to 40 minutes, once.
k8s: $(READY)
	@$(BIN)/python tests/servers/kubernetes_cluster.py || echo "Kubernetes could not be built: its tests will be skipped"

# What hosts over SSH that reach no package index are given.
wheelhouse: $(READY)
	@$(BIN)/python tests/servers/wheelhouse.py || echo "wheels could not be downloaded: tests of preparing hosts will be skipped"

test-all: lint servers engines slurm k8s wheelhouse
	$(PYTEST) --cov --cov-fail-under=90

# Writes what is generated, then builds all pages as a site in build/site and checks its links.
docs: $(READY)
	$(BIN)/python docs/generate_reference.py
	$(BIN)/python docs/build_site.py

clean:
	rm -rf $(VENV) .demo build dist
