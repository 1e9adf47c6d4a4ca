# Everything a newcomer needs. Each target sets up what it needs, in .venv; python3, make and pip suffice.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
RUNTIME := $(VENV)/.installed
DEV     := $(VENV)/.installed-dev
FEDERATION := $(VENV)/.installed-federation
STUDY   := $(VENV)/.installed-study
MUTANTS := $(VENV)/.installed-mutants
PEERS   := $(VENV)/bench-peers

.DEFAULT_GOAL := help
.PHONY: help run federation study kernels test journeys wheels coverage check format bench soak mutants named docs clean

help:            ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(RUNTIME): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[learn]'
	@touch $@

# pip reads dependency groups since 25.1
$(DEV): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --editable '.[all]' --group dev
	@touch $@ $(RUNTIME)

run: $(RUNTIME)  ## the main job: train a simulated federation by three methods; a table and a report
	$(BIN)/basecagg run

$(FEDERATION): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[learn,service]'
	@touch $@

federation: $(FEDERATION)  ## a server and twelve users as real processes over TLS on this machine
	$(BIN)/python examples/federation/run.py $(ARGS)

# SurvSet has the patients, lifelines the pooled analysis; neither is needed by anything else. The service is for
# the tutorial's next step, examples/dialysis/service.py.
$(STUDY): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --editable '.[learn,service]' --group study
	@touch $@

study: $(STUDY)  ## survival on dialysis over 67 centres that show no patient; a table, study.json and a report
	$(BIN)/python examples/dialysis/study.py $(ARGS)

# A file at a time, in the order of tests/conftest.py; three workers keep two cores busy, for some tests wait.
# The programs that tests start find the package compiled, whatever the shell says about bytecode; and the kernels,
# which three workers would otherwise compile and store at the same time.
WORKERS ?= 3
TESTS := -m pytest -m "not soak and not journey" -n $(WORKERS) --dist loadfile --no-loadscope-reorder
test coverage: export PYTHONDONTWRITEBYTECODE :=

kernels: $(DEV)
	@$(BIN)/python -c "from basecagg.maths.kernels import warm_up; warm_up()"

test: kernels    ## the tests
	$(BIN)/python $(TESTS) $(ARGS)

journeys: kernels ## what people do, by the programs of the built wheel, at sizes that people have (about half an hour)
	$(BIN)/python -m pytest tests/journeys -m journey -v $(ARGS)
	$(BIN)/python scripts/results.py

wheels: $(DEV)   ## the wheel alone and with each extra alone, in new environments; EXTRA=learn for one of them
	$(BIN)/python -m pytest tests/test_wheel.py -m "soak or not soak" $(if $(EXTRA),-k "[$(EXTRA)") $(ARGS)

# The tests as ever; their workers and the programs that they start write one file each.
coverage: kernels ## the tests, and which lines of src they ran
	rm -rf .coverage && mkdir .coverage
	$(BIN)/coverage run $(TESTS) $(ARGS)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report --skip-covered --sort=cover

check: $(DEV)    ## format, lint, types, imports
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(DEV)   ## put the code into shape
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# FedML's secure aggregation is one file without dependencies: kept apart, none of its own are installed.
$(PEERS): | $(DEV)
	$(BIN)/python -m pip install --quiet --group bench
	$(BIN)/python -m pip install --quiet --no-deps --target $@ fedml==0.9.6

bench: $(PEERS)  ## kernels, the full cycle and the simulator, against peers and limits
	@missed=0; for part in benchmarks benchmarks.cycle benchmarks.simulation; do \
		$(BIN)/python -m $$part || missed=1; done; exit $$missed

docs: $(DEV)     ## write the generated pages, build the site into site/
	$(BIN)/python scripts/reference.py
	$(BIN)/python scripts/idea.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

soak: $(DEV)     ## the long forms of the tests
	$(BIN)/python -m pytest -m soak $(ARGS)

$(MUTANTS): pyproject.toml | $(DEV)
	$(BIN)/python -m pip install --quiet --group mutants
	@touch $@

mutants: $(MUTANTS)  ## change the code in small ways: does a test notice? (a night; goes on where it stopped)
	$(BIN)/python scripts/mutants $(ARGS)
	$(BIN)/python scripts/results.py

named: $(DEV)    ## take out rules whose loss no test noticed once: does one now? (some minutes)
	$(BIN)/python scripts/mutants/named.py

clean:           ## remove .venv and caches
	rm -rf $(VENV) .coverage build dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
