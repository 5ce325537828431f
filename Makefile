# For a fresh machine with Python 3.11 or newer and nothing else.
#
#   make demo    set up, then train, export, serve and ask, in a few minutes
#   make test    set up, then run every test
#   make check   lint, types and the fast tests: before a commit
#   make lint    ruff, mypy, deptry
#   make setup   only set up; a second run installs nothing
#
# Options: PYTHON=python3.12          the interpreter that .venv is made with
#          LOG=rows.jsonl CASES=bank.jsonl   the demo on real files
#          TORCH_INDEX=URL            one more index to look for torch in (a CPU build, say)
#          COVERAGE=1                 branch coverage of `make test`

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo test check lint

VENV := .venv
RUN := $(VENV)/bin/python
STAMP := $(VENV)/.installed
EXTRAS := cpu,serve,train,postgres,offline,dev,sweep
TORCH := torch==2.13.0

PYTHON ?= $(shell for candidate in python3 python3.13 python3.12 python3.11 python; do \
	"$$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' \
	>/dev/null 2>&1 && { echo "$$candidate"; break; }; done)

# One dot a package: pip's own bars do not survive --quiet, and its full log buries what matters.
PIP_INSTALL = $(RUN) -m pip install --disable-pip-version-check --no-input --progress-bar off
DOTS = awk '/^ *(Collecting|Obtaining)/ { printf "."; fflush() } END { print "" }'

help:
	@sed -n '/^#/!q; s/^# \{0,1\}//p' Makefile

setup: $(STAMP)

# pip is the last thing that venv makes: a venv cut short is made again.
$(VENV)/bin/pip:
	@if [ -z "$(PYTHON)" ]; then \
	  echo "error: no Python 3.11 or newer with venv was found on the PATH; install one" \
	    "(Debian, Ubuntu: apt install python3 python3-venv) or name it: make PYTHON=/path/to/python" >&2; \
	  exit 1; \
	fi
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11) and "error: " + sys.executable \
	  + " is Python " + sys.version.split()[0] + "; Precedent needs 3.11 or newer: make PYTHON=/path/to/python")'
	@echo "[1/3] making $(VENV) with $$("$(PYTHON)" --version)"
	@"$(PYTHON)" -m venv --clear $(VENV)

# torch comes first and by version: where the index has a CPU build, that one is taken.
$(STAMP): pyproject.toml constraints.txt | $(VENV)/bin/pip
	@echo "[2/3] installing $(TORCH)"
	@$(PIP_INSTALL) -c constraints.txt $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) $(TORCH) | $(DOTS)
	@echo "[3/3] installing Precedent with [$(EXTRAS)]"
	@$(PIP_INSTALL) -c constraints.txt -e ".[$(EXTRAS)]" | $(DOTS)
	@touch $@

demo: setup
	@$(RUN) -m harness.demo $(if $(LOG),--log "$(LOG)") $(if $(CASES),--cases "$(CASES)")

test: setup
	@$(RUN) -m pytest -q $(if $(COVERAGE),--cov --cov-report=term:skip-covered)

check: lint
	@$(RUN) -m pytest -q -m "not slow"

lint: setup
	@$(RUN) -m ruff check .
	@$(RUN) -m ruff format --check .
	@$(RUN) -m mypy
	@$(RUN) -m deptry .
