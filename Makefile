# `make` lists the targets. Each sets up what it needs; a second run finds it done.
.DEFAULT_GOAL := help
SHELL := bash
# images of Python set it; each process would compile repot, Celery and the tests again
unexport PYTHONDONTWRITEBYTECODE
BIN := .venv/bin
CAMPAIGN := PYTHONPATH=tests $(BIN)/python -m campaign

.NOTPARALLEL:
.PHONY: help demo rollout-demo examples test campaign groups check setup venv brokers lint types contract unit mutants conformance audit lock docs site pictures clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-13s %s\n", $$1, $$2}'

demo: setup ## Show on both brokers how a task is run twice
	@$(BIN)/repot demo

rollout-demo: setup ## Run docs/tutorial-rollout.md: a shop moves with a canary
	@$(BIN)/python scripts/run_page.py

examples: setup ## Run the README of each directory of examples/ on private servers
	@for page in examples/*/README.md; do $(BIN)/python scripts/run_page.py $$page || exit; done

test: setup ## Prove each promise of the docs once, on real brokers: under 8 minutes on two processors
	@$(CAMPAIGN) --test

campaign: setup ## All other tests, by group; GROUPS="moves browser" runs some, AGAIN=1 also those that have passed
	@$(CAMPAIGN) $(GROUPS) $(if $(AGAIN),--again)

groups: venv ## List the groups of the campaign
	@$(CAMPAIGN) --list

check: venv ## The part of `make test` without servers
	@$(CAMPAIGN) --test $@

setup: brokers venv ## Install what is missing: .venv, Redis, RabbitMQ, Toxiproxy

venv: ## Install what is missing: .venv with repot and its tools, no server
	@scripts/setup venv

brokers: ## Install what is missing: Redis, RabbitMQ, Toxiproxy
	@scripts/setup brokers

lint: venv ## ruff, the words of docs/glossary.md, actionlint
	@$(CAMPAIGN) --test $@

types: venv ## mypy --strict
	@$(CAMPAIGN) --test $@

contract: venv ## Which package may import which
	@$(CAMPAIGN) --test $@

unit: venv ## Tests without servers
	@$(CAMPAIGN) --test $@

mutants: setup ## Plant defects one at a time in a copy, and name those that no test notices
	PYTHONPATH=tests $(BIN)/python -m mutants

conformance: setup ## Celery's own integration tests with and without repot, on both brokers (half an hour)
	@scripts/celery_tests
	PYTHONPATH=tests $(BIN)/python -m conformance

# not those of the oldest allowed versions and of earlier releases of Celery, which are to be what they are
AUDITED := requirements.txt requirements-build.txt requirements-database.txt requirements-dev.txt requirements-flower.txt

audit: ## Known vulnerabilities of the pinned packages; asks the package index for each (needs pipx)
	pipx run --spec pip-audit==2.10.1 pip-audit --strict --require-hashes --disable-pip $(AUDITED:%=-r %)

lock: ## Resolve the requirements files again
	scripts/lock

docs: venv ## Write docs/settings.md, docs/exit-codes.md, docs/rules/ and tables of other pages from the code
	$(BIN)/python scripts/settings_page.py > docs/settings.md
	$(BIN)/python scripts/exit_codes_page.py > docs/exit-codes.md
	$(BIN)/python scripts/rule_pages.py docs/rules
	$(BIN)/python scripts/scenarios_page.py
	$(BIN)/python scripts/matrix_page.py
	$(BIN)/python scripts/upstream_page.py
	$(BIN)/python scripts/capabilities_page.py

site: venv ## Build the docs site into site/; a broken link or anchor ends it
	@$(CAMPAIGN) --again $@

pictures: setup ## Make docs/pictures again: both demos, and a browser that looks at their pages
	@scripts/setup browser
	$(BIN)/python scripts/pictures.py

clean: ## Remove .venv, .tools and caches
	rm -rf .venv .tools site .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .campaign
