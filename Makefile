# make run    start the broker with every protocol on loopback; ARGS='--proto=cafe --port=7070'
# make test   run all tests
# make compiled  run the tests of what is compiled over its compiled form; make test does too
# make lint   ruff and mypy
# make bench  measure; ARGS='--help' says how
# make peers  measure beside mosquitto, redis-server, nats-server and libzmq, into docs/

PYTHON ?= python3
BIN := .venv/bin
INSTALL := pyproject.toml constraints.txt scripts/setup

.PHONY: run test compiled lint bench peers clean

run: .venv/.installed-run
	exec $(BIN)/twistd -n --pidfile= pubsub $(ARGS)

test: .venv/.installed-dev
	$(BIN)/pytest -q -p no:twisted tests/unit tests/contract tests/bench
	$(BIN)/trial --temp-directory=.venv/trial tests.unit
	$(BIN)/pytest -q tests/integration tests/crash
	$(BIN)/pytest -q -p no:twisted tests/spark tests/browser
	scripts/compiled

compiled: .venv/.installed-dev
	scripts/compiled

lint: .venv/.installed-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

bench: .venv/.installed-dev
	$(BIN)/python -m tests.bench $(ARGS)

peers: .venv/.installed-dev .venv/.installed-bench
	$(BIN)/python -m tests.bench.peers $(ARGS)

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis twisted/plugins/dropin.cache

.venv/.installed-run: $(INSTALL)
	PYTHON=$(PYTHON) scripts/setup run

.venv/.installed-dev: $(INSTALL)
	PYTHON=$(PYTHON) scripts/setup dev

.venv/.installed-bench: $(INSTALL)
	PYTHON=$(PYTHON) scripts/setup bench
