# Each target sets itself up in .venv, using only python3, pip and make.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt
INPUTS := pyproject.toml constraints.txt src/rowtier/__init__.py

TESTS  ?= tests
PLANS  ?= 100

.PHONY: help install check format quick test gpu-proof coverage fuzz demo package site bench results results-quick results-accept docs clean

help:     ## list the targets
	@grep -hE '^[a-z-]+: .*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

install: $(VENV)/.dev  ## everything a contributor needs, torch and TorchRec included

check: $(VENV)/.dev  ## lint, format, types, docs that are generated
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python docs/make.py --check
	$(BIN)/python docs/make_results.py --check

format: $(VENV)/.dev  ## fix what can be fixed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

quick: $(VENV)/.dev  ## the tests that take no processes, browsers or long drawings
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m "not slow"

test: $(VENV)/.dev  ## all tests
	$(BIN)/python -m pytest -n 2 --dist loadgroup

gpu-proof: $(VENV)/.dev  ## what is shown of GPUs without one; PLANS=1000 for more drawn plans
	ROWTIER_PRETEND_PLANS=$(PLANS) $(BIN)/python -m pytest -q tests/distributed/test_pretend_training.py
	$(BIN)/python benchmarks/device_gate.py --json

# Figures count even if a test does not hold while it is watched.
coverage: $(VENV)/.dev  ## what no test runs, TESTS=tests/cost for a part; writes coverage.json
	$(BIN)/coverage erase
	-$(BIN)/coverage run -m pytest -n 2 --dist loadgroup $(TESTS)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage json --quiet
	$(BIN)/coverage report
	$(BIN)/python benchmarks/house.py

fuzz: $(VENV)/.dev  ## ten thousand broken files and options, two minutes; SEED=7 for others
	PYTHONPATH=benchmarks $(BIN)/python -m fault_kinds.fuzz --count 10000

demo: $(VENV)/.demo  ## from a workload to placements, a report and a training run
	$(BIN)/python examples/demo.py

package: $(VENV)/.dev  ## build and install the wheel in every Python found, types for 3.10 and 3.13
	$(BIN)/python benchmarks/installs.py

site: $(VENV)/.dev  ## the documentation as a site in site/, with search; fails at a broken link
	$(BIN)/mkdocs build --quiet
	$(BIN)/python docs/check_site.py site

bench: $(VENV)/.dev  ## run every benchmark, keep the JSON in benchmarks/results/
	$(BIN)/python benchmarks/run_all.py

results: $(VENV)/.dev  ## measure the papers' claims (under an hour), write docs/results.md
	$(BIN)/python benchmarks/claims.py
	$(BIN)/python docs/make_results.py

results-quick: $(VENV)/.dev  ## the same in minutes; fails if a count of bytes or rows is worse
	$(BIN)/python benchmarks/claims.py --quick --gate

results-accept: $(VENV)/.dev  ## take the counts of the last results-quick as the new ones
	$(BIN)/python benchmarks/claims.py --accept

docs: $(VENV)/.dev  ## write the generated pages anew
	$(BIN)/python docs/make.py
	$(BIN)/python docs/make_results.py

clean:    ## remove what the other targets made
	rm -rf $(VENV) demo dist site .coverage* coverage.json
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# What users get from `pip install rowtier`.
$(VENV)/.light: $(BIN)/python $(INPUTS)
	$(PIP) -e .
	@touch $@

# The same with what `rowtier report` draws with, and torch to train with.
$(VENV)/.demo: $(VENV)/.light
	$(PIP) -e '.[report]' torch==2.13.0
	@touch $@

# TorchRec asks for the CUDA build of fbgemm, so it is installed without its needs.
$(VENV)/.dev: $(VENV)/.light
	$(PIP) -e '.[dev,report,dask,torch,cuda]' torch==2.13.0
	$(PIP) fbgemm-gpu-cpu tensordict torchmetrics tqdm pyre-extensions
	$(PIP) --no-deps torchrec
	@touch $@
