# `make` lists the targets. Each sets up what it needs; a second run finds it done.
.DEFAULT_GOAL := help
SHELL := bash
BIN := .venv/bin
SERVERS := tests/conformance tests/servers tests/upstream/test_bugs.py

.NOTPARALLEL:
.PHONY: help demo test check setup venv brokers browser lint types contract unit together apps servers suite health chaos compose conformance lock docs clean

help: ## List the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-11s %s\n", $$1, $$2}'

demo: setup ## Show on both brokers how a task is run twice
	@$(BIN)/repot demo

test: check together compose ## Every check: lint, types, import contract, all tests

check: lint types contract unit ## The fast ones: no servers

setup: brokers venv ## Install what is missing: .venv, Redis, RabbitMQ, Toxiproxy

venv: ## Install what is missing: .venv with repot and its tools, no server
	@scripts/setup venv

brokers: ## Install what is missing: Redis, RabbitMQ, Toxiproxy
	@scripts/setup brokers

browser: ## Install what is missing: Chromium and its driver, for tests of pages
	@scripts/setup browser

lint: venv ## ruff, and the words of docs/glossary.md
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python scripts/words

types: venv ## mypy --strict
	$(BIN)/mypy

contract: venv ## Which package may import which
	$(BIN)/lint-imports

unit: venv ## Tests without servers
	$(BIN)/pytest tests/unit tests/upstream --ignore tests/upstream/test_bugs.py --numprocesses 2

together: setup suite browser ## The next four groups in one run: most of their time is waiting
	$(BIN)/pytest tests/chaos tests/health $(SERVERS) tests/apps --numprocesses 6 --dist loadgroup

apps: venv ## The doctor on whole projects, from tutorials and unusual ones
	$(BIN)/pytest tests/apps --numprocesses 2 --dist loadgroup

servers: setup suite ## Tests on private servers, including a part of Celery's own
	$(BIN)/pytest $(SERVERS) --numprocesses 6 --dist loadgroup

suite: setup
	@scripts/celery_tests

health: setup ## Tests of the health sidecar, on workers whose brokers fail
	$(BIN)/pytest tests/health --numprocesses 6 --dist loadgroup

chaos: setup browser ## Tests of the scenarios, and of their report in a browser
	$(BIN)/pytest tests/chaos --numprocesses 2 --dist loadgroup

compose: setup ## Tests on Docker Compose, where an engine answers
	$(BIN)/pytest tests/compose --numprocesses 2 --dist loadfile

conformance: setup suite ## Celery's own integration tests with and without repot, on both brokers (half an hour)
	PYTHONPATH=tests $(BIN)/python -m conformance

lock: ## Resolve the requirements files again
	scripts/lock

docs: venv ## Write docs/settings.md, docs/rules/ and the tables of docs/scenarios.md from the code
	$(BIN)/python scripts/settings_page.py > docs/settings.md
	$(BIN)/python scripts/rule_pages.py docs/rules
	$(BIN)/python scripts/scenarios_page.py
	$(BIN)/python scripts/upstream_page.py

clean: ## Remove .venv, .tools and caches
	rm -rf .venv .tools .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
