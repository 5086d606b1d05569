# Each command is a module with its own help; `make help` lists them.
PYTHON ?= python3
# An environment belongs to one Python: beside .venv, another one gets an environment of its own, such as .venv-3.13.
VENV := .venv
ifeq ($(origin PYTHON),command line)
  VERSION := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
  ifneq ($(wildcard .venv/lib/python3*),)
    ifeq ($(wildcard .venv/lib/python$(VERSION)),)
      VENV := .venv-$(VERSION)
    endif
  endif
endif
BIN := $(VENV)/bin
RUN := $(BIN)/python -m

STUDENTS := $(BIN)/.for-students
GRADING := $(BIN)/.for-grading
HUB := $(BIN)/.for-hub
DEV := $(BIN)/.for-developers
JOBS ?= 4
unexport PYTHONDONTWRITEBYTECODE  # otherwise each process of each test compiles the library again

.PHONY: help install lab update test test-all soak doctor solved lecture site pictures release autograde regrade formgrader collect grades feedback report leaderboard hub variants cheats mutants new-part check student-archive gradescope autolab bench validate lint constraints

help:            ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

# JupyterHub's proxy, which is not a Python package.
PROXY = command -v configurable-http-proxy >/dev/null || ls $(VENV)/node_modules/.bin/configurable-http-proxy >/dev/null 2>&1 || \
  npm install --silent --no-audit --no-fund --prefix $(VENV) configurable-http-proxy@5 || { rm -f $(HUB); \
  echo "JupyterHub needs configurable-http-proxy 5: install Node.js 20 or newer with npm, or the proxy itself, and try again."; exit 1; }

# Install on first use, with uv if available, else with pip. $(1): the extras. $(2): a description.
define install
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) not found. Install Python 3.11 or newer, or name another one: make lab PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; $(PYTHON) is $$($(PYTHON) --version 2>&1)."; exit 1; }
	@echo "Installing $(2) into $(VENV) (once; a few minutes with a slow network) ..."
	@if command -v uv >/dev/null; then \
	  uv venv -q --allow-existing --python $(PYTHON) $(VENV) && uv pip install -q --python $(BIN)/python -c constraints.txt -e '.$(1)'; \
	else \
	  $(PYTHON) -m venv $(VENV) && $(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.$(1)'; \
	fi
	@touch $@
endef

$(STUDENTS): pyproject.toml constraints.txt
	$(call install,,the course)
$(GRADING): pyproject.toml constraints.txt
	$(call install,[grading],the course and what grading needs)
	@touch $(STUDENTS)
$(HUB): pyproject.toml constraints.txt
	$(call install,[hub],the course and JupyterHub)
	@$(PROXY)
	@touch $(STUDENTS) $(GRADING)
$(DEV): pyproject.toml constraints.txt
	$(call install,[dev],the course and what its tests need)
	@touch $(STUDENTS) $(GRADING)

install: $(STUDENTS)  ## Install only what a student needs
	@echo "Installed. make lab opens the course."

lab: $(STUDENTS)      ## Open the course in JupyterLab
	@$(RUN) course_lib.tools.lab

update: $(STUDENTS)   ## Bring a part's new text into a notebook that you have started (PART=...; all by default)
	@$(RUN) course_lib.tools.update $(PART)

PYTEST = $(BIN)/ruff format --check -q . && $(BIN)/ruff check -q . && $(RUN) pytest -n $(JOBS) --dist loadscope --no-loadscope-reorder

test: $(DEV)         ## Run the tests that show whether the course works here (JOBS=4: four at a time, PYTHON=python3.13: with another Python)
	@$(PYTEST)

test-all: $(DEV)     ## Run every test that does not need root (JOBS=4: four at a time; AFTER=test: only what make test leaves out)
	@$(PYTEST) -m "not root and $(if $(filter test,$(AFTER)),slow,not brief)"

soak: $(DEV) ## Run the tests RUNS times in random order, quiet and beside other work, to find those that fail by luck (ALL=1: all)
	@$(BIN)/python tests/helpers/soak.py $(if $(RUNS),--runs $(RUNS)) $(if $(ALL),--all)

doctor: $(STUDENTS)   ## Show what works on this machine, and how to fix what does not
	@$(RUN) course_lib.tools.doctor

solved: $(GRADING) ## Write solved notebooks into my_lectures/ and open them there (PART=... for one, NEW=1 to replace what is there)
	@$(RUN) lectures.show solved --part=$(PART) $(if $(filter 1,$(NEW)),--new)

lecture: $(GRADING) ## Open a part as slides with live ranks (PART=..., MINUTES=15 or 50, NEW=1 to replace what is there)
	@$(RUN) lectures.show lecture --part=$(PART) $(if $(MINUTES),--minutes=$(MINUTES)) $(if $(filter 1,$(NEW)),--new)

site: $(DEV)         ## Write the web site to docs/_build/site/ (SOLUTIONS=1: with solutions, for you only)
	@$(RUN) docs.build $(if $(filter 1,$(SOLUTIONS)),--solutions)

pictures: $(DEV) ## Redraw the pictures in the README and on the site, from real runs
	@$(RUN) docs.pictures

release: $(GRADING) ## Build notebooks/ from solutions/ (PART=01_data_split for one)
	@$(RUN) grading.release $(PART)

collect: $(GRADING) ## Sort downloaded hand-ins into grading/submitted/ (PART=... FROM=folder or zip)
	@$(RUN) grading.collect $(PART) "$(FROM)"

autograde: $(GRADING) ## Grade the hand-ins in grading/submitted/ (PART=..., STRICT=1: fail if a hand-in cannot be graded)
	@$(RUN) grading.autograde $(PART)

regrade: $(GRADING) ## Regrade one student's hand-in (PART=... STUDENT=...)
	@[ -n "$(STUDENT)" ] || { echo "Which student? make regrade PART=01_data_split STUDENT=ada"; exit 1; }
	@$(RUN) grading.autograde $(PART) "$(STUDENT)"

formgrader: $(GRADING) ## Open nbgrader's formgrader: read written answers, give points and comments by hand
	@$(RUN) grading.results.formgrader

grades: $(GRADING) ## Write grading/grades.csv, and the files that Canvas, Moodle and Brightspace import
	@$(RUN) grading.grades

feedback: $(GRADING) ## Write the feedback pages as HTML (PART=...)
	@$(RUN) grading.feedback $(PART)

report: $(GRADING) ## Write a report on the class to grading/reports/: a page and tables (PART=...)
	@$(RUN) grading.report $(PART)

leaderboard: $(GRADING) ## Write grading/leaderboard.html from the graded part 20
	@$(RUN) grading.results.leaderboard

variants: $(DEV) ## Run wrong and right answers against the hidden tests (PART=... for one)
	@$(RUN) grading.variants $(PART)

cheats: $(DEV) ## Run cheats against the hidden tests (PART=... for one)
	@$(RUN) grading.variants --cheats $(PART)
	@[ -n "$(PART)" ] || $(RUN) pytest tests/grading/submission/test_cheats.py tests/grading/isolation/test_isolated_ranks.py

mutants: $(DEV) ## Change each solution in one place, and list what the hidden tests do not notice (PART=... for one)
	@$(RUN) grading.mutants $(PART)

new-part: $(DEV) ## Create a small, working part as a starting point (PART=90_my_part)
	@$(RUN) grading.new_part $(PART)

check: $(DEV) ## Check one part within a minute: format, release, answers, talk, page (PART=01_data_split)
	@[ -n "$(PART)" ] || { echo "Which part? make check PART=01_data_split"; exit 1; }
	@[ -d solutions/$(PART) ] || { echo "There is no part $(PART) in solutions/."; exit 1; }
	@$(BIN)/ruff format --check -q solutions/$(PART) && $(BIN)/ruff check -q solutions/$(PART) || { echo "make lint formats it."; exit 1; }
	@$(RUN) grading.release $(PART)
	@$(RUN) pytest -q -n 2 -m "not root and not brief" -k "($(PART) or every_notebook or all_exercises or folded)" \
	  tests/grading/authoring/test_release.py tests/grading/submission/test_points.py tests/lectures/test_talk.py
	@$(RUN) docs.build --part $(PART)

student-archive: $(GRADING) ## Write dist/distributed-training-course.zip, for students
	@$(RUN) grading.authoring.archive

gradescope: $(GRADING) ## Write dist/gradescope-PART.zip, an autograder for Gradescope (PART=..., PYTHON_VERSION=3.12, MINUTES=10)
	@PYTHON_VERSION=$(PYTHON_VERSION) MINUTES=$(MINUTES) $(RUN) grading.autograders.build_archive gradescope $(PART)

autolab: $(GRADING) ## Write dist/autolab-PART/, an autograder for Autolab (PART=..., PYTHON_VERSION=3.12, MINUTES=10)
	@PYTHON_VERSION=$(PYTHON_VERSION) MINUTES=$(MINUTES) $(RUN) grading.autograders.build_archive autolab $(PART)

hub: $(HUB) ## Start JupyterHub for a class, as root (COURSE_INSTRUCTORS=ada,grace; settings: docs/jupyterhub.md)
	@$(RUN) jupyterhub --config=hub/jupyterhub_config.py

bench: $(DEV) ## Run the benchmarks (ONLY=name for one, TURNS=1: only to see that they run)
	@$(if $(TURNS),COURSE_BENCH_TURNS=$(TURNS) )$(RUN) benchmarks $(ONLY)

validate: $(STUDENTS)  ## Compare simulated training steps with published measurements
	@$(RUN) course_lib.sim validate --out plan/validate.png

lint: $(DEV) ## Format and lint
	@$(BIN)/ruff format -q . && $(BIN)/ruff check --fix -q .

constraints: $(DEV) ## Pin the newest compatible versions of all packages
	@$(BIN)/uv pip compile -q --universal --python-version 3.11 --no-emit-index-url --no-header --no-annotate --extra dev --upgrade pyproject.toml -o constraints.txt
