# The project's commands. `make` alone lists them. Needs make and Python 3.11 or newer; the rest comes from PyPI.
.DEFAULT_GOAL := help
PYTHON ?= python3
JOBS ?= 2
BIN := .venv/bin
PYTEST := $(BIN)/python -m pytest
# A home that is missing or read-only (a service account, a CI user) must not stop the set-up.
ifneq ($(shell test -w "$$HOME" && echo yes),yes)
export UV_CACHE_DIR ?= $(CURDIR)/.uv-cache
endif

# A network that inspects TLS has its root in the system's store, not among those that uv brings along.
ifneq ($(wildcard /etc/ssl/certs/ca-certificates.crt),)
export UV_SYSTEM_CERTS ?= 1
endif

.PHONY: help env up test check format bench chaos machines ddl lock

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

up: env ## a running gateway: embedded PostgreSQL, migrations, console, a sign-in link
	@$(BIN)/stratus up

test: env ## everything it needs, then all tests
	$(PYTEST) -n $(JOBS) tests/tidy tests/unit tests/contract
	$(PYTEST) -n $(JOBS) tests/store
	$(PYTEST) tests/system tests/e2e

check: env ## format, lint, types, import contracts, house rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(PYTEST) -q tests/tidy

format: env ## format the code and mend what lint can mend
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: env ## measure speed and cost; results in bench/results
	$(BIN)/python -m bench

chaos: env ## random faults for MINUTES=, repeatable by SEED=
	$(BIN)/python -m testbed.chaos $(if $(SEED),--seed $(SEED)) $(if $(MINUTES),--minutes $(MINUTES))

machines: env ## write docs/machines from the state tables
	$(BIN)/python -m testbed.machine_docs

ddl: env ## print the declared schema as SQL, for a new migration to freeze
	@$(BIN)/python -m testbed.schema_ddl

lock: ## resolve the dependencies anew
	@$(get_uv)
	@$(uv) lock

env: .venv/.synced ## the environment, from uv.lock

# A uv on PATH may be a dead shim, so it is tried, not looked up.
get_uv = uv --version >/dev/null 2>&1 || .uv/bin/uv --version >/dev/null 2>&1 || $(PYTHON) scripts/get_uv.py .uv
uv = $$(if uv --version >/dev/null 2>&1; then echo uv; else echo .uv/bin/uv; fi)
python = $$($(PYTHON) -c 'import sys; print(sys.executable)')

.venv/.synced: uv.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Stratus needs Python 3.11 or newer")'
	@$(get_uv)
	@UV_PYTHON_DOWNLOADS=never $(uv) sync --locked --all-extras --python "$(python)"
	@touch $@
