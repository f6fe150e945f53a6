# Two commands on a fresh machine: `make run` starts a broker, `make test` runs every check.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
# Tests run in twice as many processes as there are cores: most of them wait, for a deadline or a disk.
JOBS ?= $(shell $(PYTHON) -c 'import os; print(2 * len(os.sched_getaffinity(0)))')
# How many simulated runs `make sim` goes through.
SEEDS ?= 2000
# How often `make chaos` brings each fault about.
ROUNDS ?= 20
# How many faults `make chaos-spark` brings about under each query.
FAULTS ?= 8
# How many seconds `make soak-spark` takes.
SECONDS ?= 600
# How many failovers `make chaos-pair` goes through.
FAILOVERS ?= 200
# How many splits with 150,000 messages on each side it goes through.
SPLITS ?= 2
# How many changes of members `make chaos-members` goes through.
CHANGES ?= 500
# How often `make chaos-archive`, `make chaos-recover` and `make chaos-transform` kill what they run.
KILLS ?= 20
# How many outages `make chaos-outage` goes through.
OUTAGES ?= 100

.PHONY: run test test-all check setup bench demo demo-cluster fuzz sim sim-mutants sim-pair sim-pair-mutants sim-plain sim-plain-mutants chaos chaos-pair chaos-members chaos-outage chaos-spark soak-spark demo-outage clean help demo-membership bench-short bench-audit bench-recover bench-transform chaos-recover chaos-archive chaos-transform

help:  ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

run: $(VENV)/.broker  ## install the broker and start it
	$(BIN)/holdfast serve

setup: $(VENV)/.broker $(VENV)/.dev  ## install everything, start nothing

test: setup check  ## run the checks and the tests that every change must pass
	$(BIN)/python -m pytest -q -n $(JOBS) -m "not night"

test-all: setup check  ## run all tests with all their seeds, also those that take long, and hunt all planted bugs
	HOLDFAST_LONG=1 $(BIN)/python -m pytest -q -n $(JOBS) --timeout 1800

check: setup  ## ruff, mypy, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: setup  ## measure us and our peers side by side
	$(BIN)/python -m benchmarks $(BENCH)

bench-short: setup  ## judge our speed in ten minutes, by something of every part
	$(BIN)/python -m benchmarks --short --check $(BENCH)

bench-audit: setup  ## audit 20 million records and say how long it took
	$(BIN)/python -m benchmarks --peers "" --only pipeline-audit $(BENCH)

bench-recover: setup  ## recover 4 million spilled messages and say how long it took
	$(BIN)/python -m benchmarks --peers "" --only pipeline-recover $(BENCH)

bench-transform: setup  ## take a million messages through transforms of each kind and say how fast
	$(BIN)/python -m benchmarks --peers "" --only pipeline-transform $(BENCH)

demo: $(VENV)/.broker  ## watch a broker being killed and losing nothing
	$(BIN)/holdfast demo broker

demo-cluster: $(VENV)/.broker  ## watch a cluster lose its leader and no message
	$(BIN)/holdfast demo cluster

demo-membership: $(VENV)/.broker  ## watch nodes join, leave and come back, and subscribers that they call
	$(BIN)/holdfast demo membership

demo-outage: setup  ## watch a broker lose its database, die too, and lose no message
	$(BIN)/holdfast demo outage

fuzz: setup  ## throw garbage at every parser
	$(BIN)/python -m fuzz --seconds 60

sim: setup  ## let a whole cluster live through SEEDS=2000 simulated disasters
	$(BIN)/python -m simulation cluster --seeds $(SEEDS)

sim-mutants: setup  ## plant bugs in the consensus and see that the simulator finds each
	$(BIN)/python -m simulation cluster --mutants

sim-pair: setup  ## simulate pairs, SEEDS=2000 runs
	$(BIN)/python -m simulation pair --seeds $(SEEDS)

sim-pair-mutants: setup  ## plant bugs in the pair and see that the simulator finds each
	$(BIN)/python -m simulation pair --mutants

sim-plain: setup  ## simulate plain pairs, SEEDS=2000 runs
	$(BIN)/python -m simulation plain --seeds $(SEEDS)

sim-plain-mutants: setup  ## plant bugs in the plain pair and see that the simulator finds each
	$(BIN)/python -m simulation plain --mutants

chaos-pair: setup  ## kill, pause, cut off and wipe both brokers of a pair, FAILOVERS=200 times in a row, with SPLITS=2 long splits
	$(BIN)/python -m chaos pair --failovers $(FAILOVERS) --splits $(SPLITS)

chaos-members: setup  ## have nodes of a real cluster come and go under kills and splits, CHANGES=500 times
	$(BIN)/python -m chaos members --changes $(CHANGES)

chaos-outage: setup  ## kill, pause, fill up a database and its brokers, OUTAGES=100 times in a row: one, two and three brokers
	$(BIN)/python -m chaos outage --outages $(OUTAGES)
	$(BIN)/python -m chaos outage --outages $(OUTAGES) --brokers 2
	$(BIN)/python -m chaos outage --outages $(OUTAGES) --brokers 3

chaos-recover: setup  ## kill recoveries of spilled messages, KILLS=20 times
	$(BIN)/python -m chaos recover --kills $(KILLS)

chaos: setup  ## break a real cluster in every way, ROUNDS=20 times each; or one for MINUTES=30, with SEED=7 again
	$(BIN)/python -m chaos $(if $(MINUTES),long --minutes $(MINUTES),cluster --rounds $(ROUNDS)) $(if $(SEED),--seed $(SEED))

chaos-archive: setup  ## kill a driver at work that archives and compacts, KILLS=20 times, and count every offset
	$(BIN)/python -m chaos archive --kills $(KILLS)

chaos-spark: setup  ## kill executors, drivers and brokers under streaming queries, FAULTS=8 in turn under each
	$(BIN)/python -m chaos spark --rounds $(FAULTS)

chaos-transform: setup  ## kill the driver of a transform, KILLS=20 times
	$(BIN)/python -m chaos transform --kills $(KILLS)

soak-spark: setup  ## see that a long stream takes no more and more memory, SECONDS=600
	$(BIN)/python -m chaos soak --seconds $(SECONDS)

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
