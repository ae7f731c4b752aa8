# make run        start the broker with every protocol on loopback; ARGS='--proto=cafe --port=7070'
# make test       run all tests, and print the coverage of those without processes of their own
# make test-unit  the unit tests alone
# make test-long  the property tests with 2000 random examples each, and all integration tests with
#                 brokers without tuning, and with brokers in asyncio's reactor, and more kills of
#                 queries, archives and the backplane's servers
# make test-oldest  the unit tests and the contract with the oldest dependencies; needs uv
# make kernel     compile the kernel in place; make run and make test do so after a change of it
# make fuzz       compare the forms of the kernel under sanitizers; ARGS='--seconds 600'
# make lint       ruff, mypy and the form of the changelog's fragments
# make docs       build the documentation as a site in .venv/site, with warnings as errors
# make hooks      have git run make lint's checks before each commit
# make changelog  print what the next section of CHANGELOG.md would be
# make bench      measure; ARGS='--help' says how
# make peers      compare with mosquitto, redis-server, nats-server and libzmq; writes the tables

PYTHON ?= python3
BIN := .venv/bin
# Without compiled files in __pycache__, each process of the tests, and each broker that they start,
# would compile every module again, and pytest would rewrite all assertions again.
unexport PYTHONDONTWRITEBYTECODE
INSTALL := pyproject.toml constraints.txt scripts/setup hatch_build.py hatch_version.py \
  pubsub/kernel/compiled.pyx pubsub/kernel/groups.pxi pubsub/kernel/head_shapes.pxi \
  pubsub/kernel/head_table.pxi pubsub/kernel/rows.pxi
# A process of pytest for each core, but at most four: many tests start brokers, Java or a browser.
PARALLEL := -n auto --maxprocesses 4 --dist worksteal
# Twice as many where a test mostly waits: for brokers, timers and clients.
CORES := $(shell nproc 2>/dev/null || echo 2)
WAITING := -n $(shell expr 2 '*' $(CORES)) --maxprocesses 4 --dist worksteal
UNITS := $(patsubst tests/unit/%.py, tests.unit.%, $(sort $(wildcard tests/unit/test_*.py)))
# The tests that run once more without the compiled kernel.
KERNEL_TESTS := $(foreach part,kernel *_heads *_server *mixed* rout* cursor* let_go audience encoders gathering http_rows, \
	tests/unit/test_$(part).py) \
	tests/contract/test_contract.py tests/contract/test_conversations.py tests/contract/test_sideways.py

.PHONY: run test trial-0 trial-1 test-unit test-long test-oldest kernel fuzz bench peers clean
.PHONY: lint ruff-check ruff-format mypy fragments docs hooks changelog

run: .venv/.installed-run
	exec $(BIN)/twistd -n --pidfile= pubsub $(ARGS)

test: .venv/.installed-dev
	$(BIN)/pytest -q -p no:twisted $(PARALLEL) tests/unit tests/contract tests/house tests/tables --cov
	PUBSUB_KERNEL=interpreted $(BIN)/pytest -q -p no:twisted $(PARALLEL) $(KERNEL_TESTS)
	$(MAKE) --no-print-directory --jobs=2 --output-sync trial-0 trial-1
	$(BIN)/pytest -q -p no:twisted $(PARALLEL) tests/bench tests/dissector
	$(BIN)/pytest -q $(WAITING) tests/crash tests/integration
	BROKER_MODE=plain $(BIN)/pytest -q $(WAITING) -m modes tests/integration
	BROKER_MODE=asyncio $(BIN)/pytest -q $(WAITING) -m modes tests/integration
	$(BIN)/pytest -q -p no:twisted $(PARALLEL) tests/spark tests/browser

# Trial runs the unit tests again, the property tests with few examples: under Twisted's own runner,
# without pytest, in a directory of its own, with errors that are logged between tests.  Each half
# has a process, as the workers of `trial --jobs` would not see those errors.  A run that hangs is
# ended with the stacks of all threads, as pytest does by its settings.
trial-0 trial-1: trial-%: .venv/.installed-dev
	HYPOTHESIS_PROFILE=smoke PYTHONFAULTHANDLER=1 timeout --signal=ABRT --kill-after=10 900 \
		$(BIN)/trial --temp-directory=.venv/$@ \
		$$(printf '%s\n' $(UNITS) | awk 'NR % 2 == $*')

test-unit: .venv/.installed-dev
	$(BIN)/pytest -q -p no:twisted $(PARALLEL) tests/unit

test-long: .venv/.installed-dev
	HYPOTHESIS_PROFILE=long $(BIN)/pytest -q -p no:twisted -m hypothesis tests/unit
	BROKER_MODE=plain $(BIN)/pytest -q tests/integration
	BROKER_MODE=asyncio $(BIN)/pytest -q tests/integration
	PUBSUB_NODE_KILLS=50 $(BIN)/pytest -q tests/integration/test_backplane_cluster.py
	PUBSUB_KILLS=40 PUBSUB_ARCHIVE_KILLS=20 $(BIN)/pytest -q -p no:twisted \
		tests/spark/test_kill.py tests/spark/test_job_commands.py -k killed

# The environment is made anew, so that it has no newer versions.
test-oldest:
	uv venv --quiet --clear --python "$(PYTHON)" .venv/oldest
	uv pip install --quiet --python .venv/oldest --resolution lowest-direct --editable '.[dev]'
	.venv/oldest/bin/pytest -q -p no:twisted $(PARALLEL) tests/unit tests/contract

kernel: .venv/.installed-dev
	scripts/kernel

fuzz: .venv/.installed-dev
	$(BIN)/python -m tests.fuzz.kernel $(ARGS)

lint: ruff-check ruff-format mypy fragments docs

ruff-check: .venv/.installed-dev
	$(BIN)/ruff check

ruff-format: .venv/.installed-dev
	$(BIN)/ruff format --check

mypy: .venv/.installed-dev
	$(BIN)/mypy

fragments: .venv/.installed-dev
	$(BIN)/towncrier build --draft >/dev/null

# With --quiet, mkdocs would not count warnings. The variable turns off an announcement of mkdocs-material.
docs: .venv/.installed-dev
	$(BIN)/python scripts/tables.py --check
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

hooks: .venv/.installed-dev
	$(BIN)/pre-commit install

changelog: .venv/.installed-dev
	$(BIN)/towncrier build --draft

bench: .venv/.installed-dev
	$(BIN)/python -m tests.bench $(ARGS)

peers: .venv/.installed-dev
	$(BIN)/python -m tests.bench.peers $(ARGS)

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage twisted/plugins/dropin.cache

.venv/.installed-run: $(INSTALL)
	PYTHON="$(PYTHON)" scripts/setup run

.venv/.installed-dev: $(INSTALL)
	PYTHON="$(PYTHON)" scripts/setup dev
