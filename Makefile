# A machine with nothing but Python, git and make:   make demo   ·   make test
# Another interpreter: make test PYTHON=python3.13   ·   some tests: make test ARGS="tests/test_slots.py -k zone"

PYTHON ?= python3
ARGS   ?=

VENV := .venv
BIN  := $(VENV)/bin
PIP  := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: demo test lint types clean

demo: $(VENV)/.installed
	$(BIN)/python -m example_project.demo $(ARGS)

test: $(VENV)/.dev
	$(BIN)/python -m pytest $(ARGS)

lint: $(VENV)/.dev
	$(BIN)/python -m ruff check .

types: $(VENV)/.dev
	$(BIN)/python -m mypy

clean:
	rm -rf $(VENV) .tox .demo .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Stamps: made anew, with the whole environment, when pyproject.toml is newer.
$(VENV)/.installed: pyproject.toml
	rm -rf $(VENV) # also if it is a file or a link that another tool left
	$(PYTHON) -m venv $(VENV)
	$(PIP) --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.installed
	$(PIP) --editable '.[dev]'
	@touch $@
