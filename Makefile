# The one entry for everything; `make` alone lists the targets. Each target does its own set-up.

VENV := .venv
BIN := $(VENV)/bin
PYTHON_FILES := dlpipe ops tests $(wildcard *.py)

# Processes that pytest spreads over, one more than CI has processors, as tests wait a lot; 0 runs everything in one.
WORKERS ?= 3
# Passed on, as in: make test ARGS='-k resume -x'
ARGS ?=

.DEFAULT_GOAL := help

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "  WORKERS=n spreads the tests over n processes; ARGS='…' reaches pytest and the demo;"
	@echo "  PYTHON=python3.13 picks the interpreter of the set-up."

.PHONY: setup
setup: ## Make .venv from the locked requirements; instant when nothing changed
	@sh ops/setup.sh

.PHONY: check
check: lint types fast ## Lint, types and the fast tests, in under two minutes

.PHONY: lint
lint: setup ## Style, formatting and the direction of imports
	$(BIN)/ruff check $(PYTHON_FILES)
	$(BIN)/ruff format --check $(PYTHON_FILES)
	$(BIN)/lint-imports --no-logo

.PHONY: types
types: setup ## Type-check the package, the tests and ops
	$(BIN)/mypy

.PHONY: fast
fast: setup ## The fast tests: unit, contract and model, on SQLite
	$(BIN)/python -m pytest -n $(WORKERS) -m 'not slow' tests/unit tests/contract tests/model $(ARGS)

.PHONY: test
test: setup ## All tests
	$(BIN)/python -m pytest -n $(WORKERS) $(ARGS)

.PHONY: engines
engines: setup ## The integration tests on PostgreSQL, RabbitMQ and an S3 server; 45 minutes. PAIR=redis for one row
	@$(BIN)/python -m tests.pairs $(if $(PAIR),--only $(PAIR)) -- -n $(WORKERS) $(ARGS)

.PHONY: demo
demo: setup ## Show the pipeline at work on this machine
	@$(BIN)/python ops/demo.py $(ARGS)

.PHONY: chaos
chaos: setup ## 2,000 jobs under faults; JOBS=20000 for a long run, SEED=7 for the schedule of a run
	@$(BIN)/python -m tests.chaos $(if $(JOBS),--jobs $(JOBS)) $(if $(SEED),--seed $(SEED)) $(ARGS)

.PHONY: fuzz
fuzz: setup ## Mutated answers, messages and staging folders; some 20 minutes. SEED=7 CASES=2000 for a trial
	@$(BIN)/python -m tests.fuzz.answers $(if $(CASES),--cases $(CASES)) $(if $(SEED),--seed $(SEED)) $(ARGS)
	@$(BIN)/python -m tests.fuzz.messages --broker redis $(if $(CASES),--cases $(CASES)) $(if $(SEED),--seed $(SEED))
	@$(BIN)/python -m tests.fuzz.messages --broker rabbitmq $(if $(CASES),--cases $(CASES)) $(if $(SEED),--seed $(SEED))
	@$(BIN)/python -m tests.fuzz.staging $(if $(CASES),--cases $(CASES)) $(if $(SEED),--seed $(SEED))

.PHONY: bench
bench: setup ## Ours and the peers side by side; an hour or two. ONLY=stream,plan ROUNDS=1 SIZE=64M for a trial
	@PYTHON=$(BIN)/python sh ops/bench/setup.sh
	@$(BIN)/python -m ops.bench $(if $(ONLY),--only $(ONLY)) $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(SIZE),--size $(SIZE)) \
		$(if $(JOBS),--jobs $(JOBS)) $(if $(PLAN_ROWS),--plan-rows $(PLAN_ROWS)) \
		$(if $(GROWTH_ROWS),--growth-rows $(GROWTH_ROWS)) $(if $(WRITE),--write) $(ARGS)

.PHONY: format
format: setup ## Format, and mend what ruff can mend
	$(BIN)/ruff check --fix-only $(PYTHON_FILES)
	$(BIN)/ruff format $(PYTHON_FILES)

.PHONY: docs
docs: setup ## Draw the state machines, tables and commands of the docs from the code
	$(BIN)/python ops/docs.py
	$(BIN)/python ops/docs_torrents.py
	$(BIN)/python ops/docs_model.py
	$(BIN)/python ops/docs_commands.py
	$(BIN)/python ops/docs_ledger.py

.PHONY: crash
crash: setup ## Every crash point times every fault, and each system call of publishing; some minutes
	$(BIN)/python -m tests.crash.matrix --processes $(WORKERS) $(ARGS)
	$(BIN)/python -m tests.crash.sweep

.PHONY: mutants
mutants: setup ## Break each guard in a copy of the package and see who notices; some minutes
	$(BIN)/python ops/mutants.py --processes $(WORKERS) --write docs/mutants.md $(ARGS)

# Not `setup`: it refuses a lock that has fallen behind pyproject.toml, which is what this mends.
.PHONY: lock
lock: ## Rewrite the lock files from pyproject.toml; UPGRADE=1 takes the newest versions
	@test -x $(BIN)/uv || sh ops/setup.sh || test -x $(BIN)/uv
	@PATH="$(CURDIR)/$(BIN):$$PATH" sh ops/lock.sh $(if $(UPGRADE),--upgrade)

.PHONY: clean
clean: ## Remove what set-up, tests and builds made; data directories stay
	rm -f $(VENV)/.locked $(VENV)/.installed
	rm -rf $(VENV) .bench build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find dlpipe ops tests -type d -name __pycache__ -prune -exec rm -rf {} +
