# Thin: every command is a module with its own help. Use `make help` for the list.
PYTHON ?= python3
BIN := .venv/bin
RUN := $(BIN)/python -m

.PHONY: help lab test doctor release autograde collect feedback leaderboard variants student-archive bench lint constraints

help:            ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

# The first use installs into .venv: with uv where it is, with pip where it is not.
$(BIN)/.installed: pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "No $(PYTHON) here. Install Python 3.11 or newer, or say which: make lab PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; $(PYTHON) is $$($(PYTHON) --version 2>&1)."; exit 1; }
	@echo "Installing into .venv (once; a few minutes with a slow network) ..."
	@if command -v uv >/dev/null; then \
	  uv venv -q --allow-existing --python $(PYTHON) .venv && uv pip install -q --python $(BIN)/python -c constraints.txt -e '.[dev]'; \
	else \
	  $(PYTHON) -m venv .venv && $(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev]'; \
	fi
	@touch $@

lab: $(BIN)/.installed      ## Open the course in JupyterLab
	@$(RUN) course_lib.tools.lab

test: $(BIN)/.installed     ## Run all tests
	@$(BIN)/ruff format --check -q . && $(BIN)/ruff check -q . && $(RUN) pytest

doctor: $(BIN)/.installed   ## Say what works on this machine, and what to do about what does not
	@$(RUN) course_lib.tools.doctor

release: $(BIN)/.installed  ## Build notebooks/ from solutions/ (PART=01_data_split for one)
	@$(RUN) grading.release $(PART)

collect: $(BIN)/.installed  ## Sort downloaded hand-ins into grading/submitted/ (PART=... FROM=folder)
	@$(RUN) grading.collect $(PART) $(FROM)

autograde: $(BIN)/.installed ## Grade what lies in grading/submitted/ (PART=...)
	@$(RUN) grading.autograde $(PART)

feedback: $(BIN)/.installed ## Write the HTML feedback (PART=...)
	@$(RUN) grading.feedback $(PART)

leaderboard: $(BIN)/.installed ## Write grading/leaderboard.html from the graded part 20
	@$(RUN) grading.leaderboard

variants: $(BIN)/.installed ## Run wrong and right answers against the hidden tests (PART=... for one)
	@$(RUN) grading.variants $(PART)

student-archive: $(BIN)/.installed ## Write dist/distributed-training-course.zip, for students
	@$(RUN) grading.archive

bench: $(BIN)/.installed    ## Measure (ONLY=name for one)
	@$(RUN) benchmarks $(ONLY)

lint: $(BIN)/.installed     ## Format and lint
	@$(BIN)/ruff format -q . && $(BIN)/ruff check --fix -q .

constraints: $(BIN)/.installed ## Pin the newest versions that fit
	@$(BIN)/uv pip compile -q --universal --python-version 3.11 --no-emit-index-url --no-header --no-annotate --extra dev --upgrade pyproject.toml -o constraints.txt
