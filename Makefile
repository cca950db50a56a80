# `make` lists the targets. Each sets up what it needs; a second run finds it done.
.DEFAULT_GOAL := help
SHELL := bash
# images of Python set it; each process would compile repot, Celery and the tests again
unexport PYTHONDONTWRITEBYTECODE
BIN := .venv/bin
SERVERS := tests/conformance tests/servers tests/upstream/test_bugs.py
# of tests/servers those whose store is a file
UNIT := tests/unit tests/upstream tests/servers --ignore tests/upstream/test_bugs.py -m 'not server' --numprocesses 2

.NOTPARALLEL:
.PHONY: help demo rollout-demo examples test check setup venv brokers browser prometheus databases lint workflows types contract unit processes coverage other-python oldest newest wheel together apps servers suite health chaos compose conformance lock docs site pictures clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-13s %s\n", $$1, $$2}'

demo: setup ## Show on both brokers how a task is run twice
	@$(BIN)/repot demo

rollout-demo: setup ## Run docs/tutorial-rollout.md: a shop moves with a canary
	@$(BIN)/python scripts/run_page.py

examples: setup ## Run the README of each directory of examples/ on private servers
	@for page in examples/*/README.md; do $(BIN)/python scripts/run_page.py $$page || exit; done

test: check other-python processes wheel together compose ## Every check: lint, types, import contract, all tests

check: lint workflows types contract unit site ## The fast ones: no servers

setup: brokers venv ## Install what is missing: .venv, Redis, RabbitMQ, Toxiproxy

venv: ## Install what is missing: .venv with repot and its tools, no server
	@scripts/setup venv

brokers: ## Install what is missing: Redis, RabbitMQ, Toxiproxy
	@scripts/setup brokers

browser: ## Install what is missing: Chromium and its driver, for tests of pages
	@scripts/setup browser

prometheus: ## Install what is missing: Prometheus, for tests of a rollout's criteria
	@scripts/setup prometheus

databases: ## Install what is missing: PostgreSQL and MariaDB, for tests of lease stores in them
	@scripts/setup databases

lint: venv ## ruff, and the words of docs/glossary.md
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python scripts/words

workflows: ## actionlint on .github/workflows, where Go is installed
	@scripts/actionlint

types: venv ## mypy --strict
	$(BIN)/mypy

contract: venv ## Which package may import which
	$(BIN)/lint-imports

unit: venv ## Tests without servers
	$(BIN)/pytest $(UNIT) $(COVERAGE)

processes: venv ## Tests that start commands as processes, without servers
	$(BIN)/pytest tests/processes --numprocesses 2

coverage: unit ## Tests without servers, and how much of repot they run; not below the floor in pyproject.toml

# not in `make check`: it costs half as much processor time again
coverage test: COVERAGE = --cov --cov-report=

AT_THE_BOUND = python=$$(scripts/environment $@) && set -x && "$$python" -m pytest $(UNIT) && \
  "$$python" -m pytest tests/processes tests/apps tests/conformance --numprocesses 2 --dist loadgroup

other-python: venv ## Tests without servers on another supported Python, where one is installed
	@python=$$(scripts/environment other-python) && if [ -n "$$python" ]; then set -x; "$$python" -m pytest $(UNIT); fi

oldest: setup suite ## Tests without servers, of projects, and of Celery's own, on the oldest allowed Celery, kombu, redis-py ...
	@$(AT_THE_BOUND)

newest: setup suite ## The same on the newest allowed ones, as of today
	@$(AT_THE_BOUND)

wheel: venv ## Build sdist and wheel, look into them, try the wheel in an empty environment
	$(BIN)/pytest tests/distribution

# with more processes two processors are always full, and what has a time limit is late
together: setup suite browser prometheus databases ## The next four groups in one run
	$(BIN)/pytest tests/chaos tests/health $(SERVERS) tests/apps --numprocesses 3 --dist loadgroup

apps: venv ## The doctor on whole projects, from tutorials and unusual ones
	$(BIN)/pytest tests/apps --numprocesses 2 --dist loadgroup

servers: setup suite browser prometheus databases ## Tests on private servers, including a part of Celery's own
	$(BIN)/pytest $(SERVERS) --numprocesses 3 --dist loadgroup

suite: setup
	@scripts/celery_tests

health: setup ## Tests of the health sidecar, on workers whose brokers fail
	$(BIN)/pytest tests/health --numprocesses 3 --dist loadgroup

chaos: setup browser ## Tests of the scenarios, and of their report in a browser
	$(BIN)/pytest tests/chaos --numprocesses 2 --dist loadgroup

compose: setup ## Tests on Docker Compose, where an engine answers
	$(BIN)/pytest tests/compose --numprocesses 2 --dist loadfile

conformance: setup suite ## Celery's own integration tests with and without repot, on both brokers (half an hour)
	PYTHONPATH=tests $(BIN)/python -m conformance

lock: ## Resolve the requirements files again
	scripts/lock

docs: venv ## Write docs/settings.md, docs/exit-codes.md, docs/rules/ and tables of other pages from the code
	$(BIN)/python scripts/settings_page.py > docs/settings.md
	$(BIN)/python scripts/exit_codes_page.py > docs/exit-codes.md
	$(BIN)/python scripts/rule_pages.py docs/rules
	$(BIN)/python scripts/scenarios_page.py
	$(BIN)/python scripts/upstream_page.py

site: venv ## Build the docs site into site/; a broken link or anchor ends it
	$(BIN)/mkdocs build --strict --quiet

pictures: setup browser ## Make docs/pictures again: both demos, and a browser that looks at their pages
	$(BIN)/python scripts/pictures.py

clean: ## Remove .venv, .tools and caches
	rm -rf .venv .tools site .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
