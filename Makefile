# groupcert: `make demo` shows it, `make test` proves it. All settings are in pyproject.toml.

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
STUBS := .build/stubs/groupcert/v1/py.typed
PINS := deploy/constraints.txt
QUICK := not nats and not cluster and not database and not spark and not slow
PURE_APPLIER := applier/assigned_queue.py,applier/commit_order.py,applier/coordinator.py,applier/fragments.py,applier/job.py,applier/parts.py,applier/siblings.py,applier/source_clock.py,applier/source_header.py,applier/until.py,applier/schemes/*,applier/whatif/*
PURE_MEMBERS := members/access.py,members/allow_list.py,members/batch_numbers.py,members/catch_up.py,members/commit_wait.py,members/decisions.py,members/departures.py,members/digest_vote.py,members/flow_control.py,members/fragment_sets.py,members/group_settings.py,members/log_health.py,members/log_validity.py,members/member.py,members/member_checkpoint.py,members/member_state.py,members/problems.py,members/progress_reports.py,members/publisher.py,members/recovery_choice.py,members/rejoins.py,members/shares.py,members/skipped_messages.py,members/suspicions.py,members/throttle.py,members/views.py,members/witnesses.py

COMPOSE ?= $(shell docker compose version >/dev/null 2>&1 && echo docker compose || echo docker-compose)

.PHONY: demo audit-demo cluster test test-containers test-processes test-audit check nightly bench proto venv format lint clean

demo: venv ## a group of three members on this machine, clients, checks
	$(BIN)/groupcert demo

audit-demo: venv ## the same group, then an audit of what its members wrote; the report's path is printed last
	rm -rf .build/audit-demo
	$(BIN)/groupcert demo --certification-log .build/audit-demo/logs
	$(BIN)/groupcert audit .build/audit-demo/logs --out .build/audit-demo/report

cluster: ## a group of three members and three log servers in containers, until Ctrl-C
	$(COMPOSE) --file deploy/compose.yaml up --build

test: lint ## everything that this machine can run
	$(BIN)/pytest -m '$(QUICK)' -n auto --cov --cov-report=
	@echo; echo "Coverage of the certifier, by these tests:"
	@$(BIN)/coverage report --fail-under=100 --include='certifier/*' --omit='certifier/audit/*'
	@echo; echo "Coverage of the other pure machines:"
	@$(BIN)/coverage report --fail-under=100 --include='$(PURE_APPLIER),$(PURE_MEMBERS)'
	@echo; echo "The tests that take longer; those with containers at the same time as the others:"
	$(MAKE) --jobs=2 test-containers test-processes test-audit

test-containers: venv ## clusters in containers
	$(BIN)/pytest -m 'not ($(QUICK))' tests/cluster

test-processes: venv ## everything else that is not quick
	$(BIN)/pytest -m 'not ($(QUICK))' --ignore=tests/cluster --ignore=tests/audit

test-audit: venv ## the audit, with Spark and a browser
	$(BIN)/pytest -m 'not ($(QUICK))' tests/audit

check: lint ## the quick run: no network, no Java, under a minute
	$(BIN)/pytest -m '$(QUICK)' -n auto

nightly: venv ## ten thousand seeds of the simulation, a quarter of an hour on two cores; then every fault of the clusters in containers, about two hours
	$(BIN)/python -m tests.sim --seeds 8000 --steps 800 --jobs 0
	$(BIN)/python -m tests.sim --seed 8000 --seeds 2000 --steps 3000 --jobs 0
	$(BIN)/python -m tests.cluster --scenario each --seed 1 --seeds 3 --seconds 40

bench: venv ## the benchmarks, one table each
	$(BIN)/groupcert bench certify
	$(BIN)/groupcert bench group
	$(BIN)/groupcert bench recovery
	$(BIN)/groupcert bench applier --start-servers --mariadb-replica --repeat 1
	$(BIN)/groupcert bench audit

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

$(STUBS): $(wildcard proto/groupcert/v1/*.proto) deploy/hatch_build.py | $(INSTALLED)
	$(BIN)/python deploy/hatch_build.py

$(INSTALLED): pyproject.toml $(PINS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo 'groupcert needs Python 3.11 or newer: make PYTHON=python3.11' >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || \
	  { [ "$$(id -u)" = 0 ] && apt-get update && apt-get install --yes python3-venv; } || \
	  { echo 'No virtual environments here: sudo apt-get install python3-venv' >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade -c $(PINS) pip
	$(BIN)/python -m pip install --quiet -c $(PINS) --build-constraint $(PINS) --editable '.[dev,audit,bench]'
	touch $@

clean: ## removes what was made, but not .venv
	rm -rf .build dist .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
