# groupcert: `make demo` shows it, `make test` proves it. All settings are in pyproject.toml.

PYTHON ?= python3
BIN := .venv/bin
# What is in .venv: what a member needs, 0.23 GB, and all that tests need, 2.0 GB.
MEMBER := .venv/.member
INSTALLED := .venv/.installed
CONTRACT := $(shell find proto -name '*.proto') deploy/hatch_build.py
STUBS := .build/package/groupcert/py.typed
PINS := deploy/constraints.txt
QUICK := not nats and not etcd and not cluster and not database and not spark and not slow and not nightly
LONGER := not nightly and (nats or etcd or cluster or database or spark or slow)
# The tests of what coverage is demanded of: the tracer doubles what a test takes.
COVERED := tests/certifier tests/applier $(addprefix tests/members/,core recovery runtime security services total_order)
# Tests wait for disks as seldom as they can: what they write is in memory, where there is enough of it.
ROOMY := $(shell awk '/MemAvailable/ { print ($$2 >= 12 * 1024 * 1024) }' /proc/meminfo 2>/dev/null; \
  df --output=avail --block-size=1G /dev/shm 2>/dev/null | awk 'NR == 2 { print ($$1 >= 8) }')
export PYTEST_DEBUG_TEMPROOT ?= $(if $(findstring 1 1,$(ROOMY)),/dev/shm,/tmp)
PYTEST = $(BIN)/pytest --durations-file=.build/durations/$@.json
PURE_APPLIER := applier/engine/commit_order.py,applier/engine/coordinator.py,applier/engine/until.py,applier/queue/fragment_references.py,applier/queue/job.py,applier/queue/row_parts.py,applier/queue/siblings.py,applier/schemes/*,applier/source/*,applier/whatif/*
PURE_MEMBERS := members/core/*,members/security/access.py,members/services/group_problems.py,members/total_order/server_health.py

# A seed for what draws another one each day.
DAY = $(shell expr `date +%s` / 86400)

COMPOSE ?= $(shell docker compose version >/dev/null 2>&1 && echo docker compose || echo docker-compose)

# Compiled modules are kept: every process of the tests would compile all that it imports again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo audit-demo cluster passwords test test-quick test-processes test-audit
.PHONY: check check-room check-tests durations nightly bench proto venv format lint clean

demo: $(if $(wildcard $(INSTALLED)),venv,$(MEMBER)) ## a group of three members on this machine, clients, checks
	$(BIN)/groupcert demo

audit-demo: venv ## the same group, then an audit of what its members wrote; the report's path is printed last
	rm -rf .build/audit-demo
	$(BIN)/groupcert demo --certification-log .build/audit-demo/logs
	$(BIN)/groupcert audit .build/audit-demo/logs --out .build/audit-demo/report

cluster: passwords ## a group of three members and three log servers in containers, until Ctrl-C
	$(COMPOSE) --file deploy/compose.yaml up --build

passwords: ## random passwords for the containers, made once; Compose reads deploy/.env by itself
	@umask 077; touch deploy/.env; chmod 600 deploy/.env; \
	for name in MEMBER OPERATOR ROUTE GRAFANA; do \
	  grep -q "^$${name}_PASSWORD=" deploy/.env || \
	    echo "$${name}_PASSWORD=$$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')" >> deploy/.env; \
	done

test: ## everything that this machine can run; of the tests that take turns, those that the change touches (tests/turns.py)
	$(MAKE) --jobs=2 --output-sync=target lint test-quick
	@echo; echo "The tests that take longer:"
	$(MAKE) --jobs=2 test-processes test-audit

test-quick: venv ## the quick tests, and what they leave of the certifier and the pure machines
	$(PYTEST) -m '$(QUICK)' -n auto --cov --cov-report= $(COVERED)
	@echo; echo "Coverage of the certifier, by these tests:"
	@$(BIN)/coverage report --fail-under=100 --include='certifier/*'
	@echo; echo "Coverage of the other pure machines:"
	@$(BIN)/coverage report --fail-under=100 --include='$(PURE_APPLIER),$(PURE_MEMBERS)'
	@echo; echo "The other quick tests, without the tracer:"
	$(BIN)/pytest --durations-file=.build/durations/$@-rest.json -m '$(QUICK)' -n auto $(COVERED:%=--ignore=%)

test-processes: venv ## all else that is not quick, in containers too, four files at a time: they wait more than they compute
	$(PYTEST) -m '$(LONGER)' -n 4 --dist loadfile --no-loadscope-reorder --ignore=tests/audit

test-audit: venv ## the audit, with Spark and a browser
	$(PYTEST) -m '$(LONGER)' tests/audit

check: ## the quick run: no network, no Java, about a minute
	$(MAKE) --jobs=2 --output-sync=target lint check-tests

check-room: venv ## the quick tests of one room, in seconds: make check-room ROOM=members/core
	$(BIN)/ruff check $(ROOM)
	$(BIN)/ruff format --check $(ROOM)
	$(BIN)/pytest -m '$(QUICK)' -n 2 $(wildcard $(or $(wildcard $(if $(filter certifier/audit%,$(ROOM)),tests/audit,tests/$(ROOM))),\
	  $(error ROOM has to be a folder with tests, such as members/core, not $(ROOM)))/test_*.py) tests/test_tidy.py

check-tests: venv
	$(PYTEST) -m '$(QUICK)' -n 3

durations: ## what the tests of the last `make test` took, into tests/bench/results
	$(BIN)/python -m tests.durations $(sort $(wildcard .build/durations/test-*.json))

nightly: venv ## ten thousand seeds of the simulation, every fault of the clusters, an hour of the fuzzer and 200 kills on each order, ten minutes of PostgreSQL servers under kills, an hour of SQL that is drawn for them, programs of others, what is too long for every run
	$(BIN)/python -m tests.sim --seeds 8000 --steps 800 --jobs 0
	$(BIN)/python -m tests.sim --seed 8000 --seeds 2000 --steps 3000 --jobs 0
	$(BIN)/python -m tests.cluster --scenario each --seconds 40
	$(BIN)/python -m tests.cluster --scenario each --seconds 40 --log etcd
	$(BIN)/python -m tests.fuzz --seconds 3600 --seed $(DAY)
	$(BIN)/python -m tests.fuzz --seconds 3600 --seed $(DAY) --order etcd
	$(BIN)/python -m tests.checker --kills 200 --seed $(DAY)
	$(BIN)/python -m tests.checker --kills 200 --seed $(DAY) --order etcd
	$(BIN)/python -m tests.postgresql --seconds 600 --seed $(DAY)
	$(BIN)/python -m tests.postgresql.sql --seconds 3600 --seed $(DAY)0000
	$(BIN)/python -m tests.foreign all
	TEST_TURN=all $(PYTEST) -m 'nightly or in_turns'

bench: venv ## the benchmarks, a line for each record
	for name in certify group recovery order postgresql audit; do \
	  $(BIN)/python -m tests.bench $$name || exit; \
	done
	$(BIN)/python -m tests.bench applier --targets rocksdb slow postgresql mariadb 'mariadb replica' --repeat 1

lint: venv
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: venv ## rewrites the sources in the one format
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

proto: | $(INSTALLED) ## makes the stubs of proto/ again
	$(BIN)/python deploy/hatch_build.py

venv: $(STUBS) ## the virtual environment .venv, with everything in it

$(STUBS): $(CONTRACT) | $(INSTALLED)
	$(BIN)/python deploy/hatch_build.py

$(MEMBER): pyproject.toml $(PINS) $(CONTRACT)
	$(call install,member)

$(INSTALLED): pyproject.toml $(PINS)
	$(call install,dev)

define install
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo 'groupcert needs Python 3.11 or newer: make PYTHON=python3.11' >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || \
	  { [ "$$(id -u)" = 0 ] && apt-get update && apt-get install --yes python3-venv; } || \
	  { echo 'No virtual environments here: sudo apt-get install python3-venv' >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade -c $(PINS) pip
	$(BIN)/python -m pip install --quiet -c $(PINS) --build-constraint $(PINS) --editable '.[$(1)]'
	touch $@
endef

clean: ## removes what was made, but not .venv
	rm -rf $(MEMBER) .build dist .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
