# Every target makes the virtual environment that it needs by itself; Python 3.11 or later is all that must be there.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
# One for each core of a small machine.
WORKERS ?= 2

# DSPy's LiteLLM asks the network for a price list when it is imported; nothing here needs it.
export LITELLM_LOCAL_MODEL_COST_MAP := True
# The theme prints an advertisement for its successor otherwise.
export NO_MKDOCS_2_WARNING := 1

.DEFAULT_GOAL := help
.PHONY: help setup demo browser redis test test-core test-deep test-faults lint types docs docs-serve check bench format clean

help:
	@echo "make demo        graphs run, are tuned, converted from LangGraph, killed and resumed; an agent works; offline"
	@echo "make test        all tests and doctests"
	@echo "make test-core   the tests of the core alone: values, schema, scheduler, nodes, graph, runtime, stores, threads"
	@echo "make test-deep   all tests with 500 examples of each law and whole products; an hour"
	@echo "make test-faults seeds 60 faults, one at a time, and asks the tests which they find; half an hour"
	@echo "make check       lint, types, strict docs build and tests"
	@echo "make docs        build the site into site/, opens from disk"
	@echo "make docs-serve  the site with live reload on http://127.0.0.1:8000"
	@echo "make bench       the benchmarks behind docs/benchmarks.md"
	@echo "make format      apply the formatter and the safe fixes"
	@echo "make clean       remove everything that was built, the environment too"

setup: $(READY)

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "dspyer needs Python 3.11 or later; $(PYTHON) is $$($(PYTHON) -V). Try: make PYTHON=python3.12 ..."; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

demo: $(READY)
	$(BIN)/python examples/quickstart.py
	$(BIN)/python examples/optimize.py
	@echo; echo "A support desk of LangGraph is converted, compared, and tuned node by node (examples/from_langgraph.py)"; echo
	$(BIN)/python examples/from_langgraph.py
	@echo; echo "A support chat: a person approves a refund, the server is killed, another one goes on (examples/support_chat.py)"; echo
	$(BIN)/python examples/support_chat.py
	@echo; echo "Stored runs to look at (examples/look.py)"; echo
	$(BIN)/python examples/look.py

# The tests drive a browser: the distribution's, since Playwright downloads its own from elsewhere.
browser:
	@test -n "$$DSPYER_NO_BROWSER$$DSPYER_CHROMIUM" || command -v chromium >/dev/null \
		|| { test "$$(id -u)" = 0 && apt-get update -qq && apt-get install -y -qq chromium >/dev/null; } \
		|| echo "no Chromium: apt-get install chromium, or set DSPYER_CHROMIUM=path, or DSPYER_NO_BROWSER=1 to leave these tests out"

# The queue of the tests that kill Celery's workers keeps its tasks in the distribution's Redis.
redis:
	@command -v redis-server >/dev/null || { test "$$(id -u)" = 0 && apt-get update -qq && apt-get install -y -qq redis-server >/dev/null; } \
		|| echo "no Redis: apt-get install redis-server; the tests of Celery are left out"

# What the tests of the inspector's page need besides: they rebuild it, and check its accessibility. Without Node they say so.
PAGE := inspector/node_modules/.package-lock.json
$(PAGE): inspector/package-lock.json
	@! command -v npm >/dev/null || (cd inspector && npm ci --ignore-scripts --no-audit --no-fund --silent) || echo "inspector/node_modules could not be installed"

# The client of AG-UI, which the tests of the route run in Node.
CLIENT := tests/serve/agui_client/node_modules/.package-lock.json
$(CLIENT): tests/serve/agui_client/package-lock.json
	@! command -v npm >/dev/null || (cd tests/serve/agui_client && npm ci --ignore-scripts --no-audit --no-fund --silent) || echo "tests/serve/agui_client/node_modules could not be installed"

# The processes that tests start find the modules compiled, also where the environment asks for no bytecode.
PYTEST := env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal
test: $(READY) browser redis $(PAGE) $(CLIENT)
	$(PYTEST)

CORE := lm graph nodes log runtime scheduler schema stores threads values
test-core: $(READY)
	$(PYTEST) $(CORE:%=tests/%) tests/test_state.py tests/test_patch.py tests/test_merge.py tests/test_policies.py tests/test_reducers.py

test-deep: $(READY) browser redis $(PAGE) $(CLIENT)
	DSPYER_DEEP=1 $(PYTEST)

test-faults: $(READY)
	$(BIN)/python -m tests.faults

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python docs/build/check_pages.py

types: $(READY)
	$(BIN)/mypy

docs: $(READY) browser
	$(BIN)/mkdocs build --strict
	$(BIN)/python -m pytest -q tests/built_site.py
	@echo "the site is in site/index.html"

docs-serve: $(READY)
	$(BIN)/mkdocs serve

check: lint types docs test

bench: $(READY)
	$(BIN)/python -m bench
	$(BIN)/python -m bench.overhead
	$(BIN)/python -m bench.optimize
	$(BIN)/python -m bench.langgraph_suite
	$(BIN)/python -m bench.growth
	$(BIN)/python -m bench.executors
	$(BIN)/python -m bench.converted
	$(BIN)/python -m bench.fleet
	$(BIN)/python -m bench.store_limits

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf site dist build inspector/node_modules tests/serve/agui_client/node_modules demo.db* .pytest_cache .mypy_cache .ruff_cache .hypothesis $(VENV)
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
