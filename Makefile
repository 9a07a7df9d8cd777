# make train              set up, then train ORAIQN on CartPole-v1 through rl-zoo3
# make test               set up, then run the tests (make test-slow: the slow ones)
# make lint type format   ruff and mypy
# make doc bench clean    documentation, timings, remove what the commands above have made (not logs/)
# make bench-peers        timings beside other libraries, which get an environment of their own, VENV_PEERS
#
# Variables: PYTHON makes the environment, VENV is its folder, ARGS goes to the command that is run, as in
#   make train ARGS="--seed 1 -tb logs/tb"

PYTHON ?= python3
VENV ?= .venv
VENV_PEERS ?= .venv-peers
ARGS ?=

BIN = $(VENV)/bin
PIP_INSTALL = $(BIN)/python -m pip install -c constraints.txt -e
INSTALLED_FROM = setup.cfg setup.py pyproject.toml constraints.txt $(wildcard startup/sb3_ora_zoo*)

.PHONY: train test test-slow lint type format doc bench bench-peers clean

train: $(VENV)/base.stamp
	$(BIN)/python -m rl_zoo3.train --algo ora_iqn --env CartPole-v1 -P $(ARGS)

test: $(VENV)/dev.stamp
	$(BIN)/python -m pytest $(ARGS)

test-slow: $(VENV)/dev.stamp
	$(BIN)/python -m pytest -m slow $(ARGS)

lint: $(VENV)/dev.stamp
	$(BIN)/ruff check $(ARGS)

type: $(VENV)/dev.stamp
	$(BIN)/mypy $(ARGS)

format: $(VENV)/dev.stamp
	$(BIN)/ruff check --fix $(ARGS)
	$(BIN)/ruff format $(ARGS)

doc: $(VENV)/docs.stamp
	$(BIN)/python -m sphinx -W --keep-going docs docs/_build $(ARGS)

bench: $(VENV)/base.stamp
	$(BIN)/python -m benchmarks $(ARGS)

bench-peers: $(VENV_PEERS)/peers.stamp
	$(VENV_PEERS)/bin/python -m benchmarks --part peers --part memory $(ARGS)

clean:
	rm -rf $(VENV) $(VENV_PEERS) build dist sb3_ora.egg-info docs/_build .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/base.stamp: $(INSTALLED_FROM) | $(BIN)/python
	$(PIP_INSTALL) .
	touch $@

$(VENV)/dev.stamp: $(VENV)/base.stamp
	$(PIP_INSTALL) '.[dev]'
	$(BIN)/python -m pip install --no-deps or-gym==0.5.0
	touch $@

$(VENV_PEERS)/peers.stamp: $(INSTALLED_FROM) benchmarks/peers.txt
	$(PYTHON) -m venv $(VENV_PEERS)
	$(VENV_PEERS)/bin/python -m pip install -e . -r benchmarks/peers.txt
	$(VENV_PEERS)/bin/python -m pip install --no-deps pfrl==0.4.0
	touch $@

$(VENV)/docs.stamp: $(VENV)/base.stamp
	$(PIP_INSTALL) '.[docs]'
	touch $@
