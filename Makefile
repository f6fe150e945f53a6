# Two commands on a fresh machine: `make run` starts a broker, `make test` runs every check.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
# Tests run in as many processes as there are cores.
JOBS ?= auto

.PHONY: run test check setup bench demo fuzz clean help

help:  ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-8s %s\n", $$1, $$2}'

run: $(VENV)/.broker  ## install the broker and start it
	$(BIN)/holdfast serve

setup: $(VENV)/.broker $(VENV)/.dev  ## install everything, start nothing

test: setup check  ## run the checks and all tests
	$(BIN)/python -m pytest -q -n $(JOBS)

check: setup  ## ruff, mypy, import contracts, tidy tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q tests/tidy

bench: setup  ## measure us and our peers side by side
	$(BIN)/python -m benchmarks $(BENCH)

demo: $(VENV)/.broker  ## watch a broker being killed and losing nothing
	$(BIN)/holdfast demo broker

fuzz: setup  ## throw garbage at every parser
	$(BIN)/python -m fuzz --seconds 60

clean:  ## remove what setup installed
	rm -rf $(VENV)

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Holdfast needs Python 3.11 or newer; run: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.broker: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(INSTALL) --editable .
	touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/.broker
	$(INSTALL) --editable '.[dev,bench]'
	touch $@
