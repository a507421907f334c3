# A machine with nothing but Python, git and make:   make demo   ·   make test
# Another interpreter: make test PYTHON=python3.13   ·   some tests: make test ARGS="tests/test_slots.py -k jitter"

PYTHON ?= python3
ARGS   ?=

VENV := .venv
BIN  := $(VENV)/bin
PIP  := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: demo test docs endings coverage benchmarks lint types clean

demo: $(VENV)/.installed
	$(BIN)/python -m example_project.demo $(ARGS)

test: $(VENV)/.dev
	$(BIN)/python -m pytest $(ARGS)

# The site, into build/docs: a warning is an error.
docs: $(VENV)/.dev
	$(BIN)/python -m sphinx -W -n --keep-going -d build/docs-trees docs build/docs

# All ways to end, in all pools, with real workers: minutes. What they see goes into docs/endings.md.
endings: $(VENV)/.dev
	$(BIN)/python -m tests.cluster.endings --write $(ARGS)

# What of the package the tests run, branches too, in all their processes: half an hour. The figure, and by file what
# is not covered, go into build/coverage.txt. A part: make coverage ARGS=tests/test_lease.py
coverage: export COVERAGE_FILE = $(CURDIR)/build/coverage/data
coverage: $(VENV)/.dev
	rm -rf build/coverage && mkdir -p build/coverage
	-$(BIN)/python -m coverage run -m pytest -o timeout=600 -m 'not timed' -n 4 --dist loadfile $(ARGS)
	-$(BIN)/python -m coverage run -m pytest -o timeout=600 -m timed $(ARGS)
	$(BIN)/python -m coverage combine --quiet
	$(BIN)/python -m coverage report --show-missing --skip-covered --sort=miss > build/coverage.txt
	@tail -n 1 build/coverage.txt

# Beside celery beat, redbeat and django-celery-beat, which it installs apart: an hour, or ARGS=--quick.
benchmarks: $(VENV)/.dev
	$(BIN)/python -m benchmarks $(ARGS)

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
