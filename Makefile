# Thin: every command is a module with its own help. Use `make help` for the list.
PYTHON ?= python3
BIN := .venv/bin
RUN := $(BIN)/python -m

STUDENTS := $(BIN)/.for-students
GRADING := $(BIN)/.for-grading
HUB := $(BIN)/.for-hub
DEV := $(BIN)/.for-developers
JOBS ?= 3
unexport PYTHONDONTWRITEBYTECODE  # else each process of each test compiles the library anew

.PHONY: help install lab update test test-all doctor solved lecture site pictures release autograde regrade formgrader collect grades feedback report leaderboard hub variants cheats new-part check student-archive gradescope autolab bench validate lint constraints

help:            ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

# JupyterHub's proxy, which is no Python package.
PROXY = command -v configurable-http-proxy >/dev/null || ls .venv/node_modules/.bin/configurable-http-proxy >/dev/null 2>&1 || \
  npm install --silent --no-audit --no-fund --prefix .venv configurable-http-proxy@5 || { rm -f $(HUB); \
  echo "JupyterHub needs configurable-http-proxy 5: install Node.js 20 or newer with npm, or the proxy itself, and say it again."; exit 1; }

# What installs into .venv, on first use: with uv where it is, with pip where it is not. $(1): the extras.
define install
	@command -v $(PYTHON) >/dev/null || { echo "No $(PYTHON) here. Install Python 3.11 or newer, or say which: make lab PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; $(PYTHON) is $$($(PYTHON) --version 2>&1)."; exit 1; }
	@echo "Installing $(2) into .venv (once; a few minutes with a slow network) ..."
	@if command -v uv >/dev/null; then \
	  uv venv -q --allow-existing --python $(PYTHON) .venv && uv pip install -q --python $(BIN)/python -c constraints.txt -e '.$(1)'; \
	else \
	  $(PYTHON) -m venv .venv && $(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.$(1)'; \
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

install: $(STUDENTS)  ## Install what a student needs, and no more
	@echo "Installed. make lab opens the course."

lab: $(STUDENTS)      ## Open the course in JupyterLab
	@$(RUN) course_lib.tools.lab

update: $(STUDENTS)   ## Bring what is new in a part into the notebook that you have begun (PART=...; all by default)
	@$(RUN) course_lib.tools.update $(PART)

PYTEST = $(BIN)/ruff format --check -q . && $(BIN)/ruff check -q . && $(RUN) pytest -n $(JOBS) --dist loadscope --no-loadscope-reorder

test: $(DEV)         ## Run the tests that say whether it works here, JOBS=3 at a time
	@$(PYTEST)

test-all: $(DEV)     ## Run every test that does not need root, JOBS=3 at a time
	@$(PYTEST) -m "not root and not brief"

doctor: $(STUDENTS)   ## Say what works on this machine, and what to do about what does not
	@$(RUN) course_lib.tools.doctor

solved: $(GRADING) ## Write solved notebooks into my_lectures/ and open them there (PART=... for one, NEW=1 to replace what is there)
	@$(RUN) lectures.show solved --part=$(PART) $(if $(filter 1,$(NEW)),--new)

lecture: $(GRADING) ## Open a part as slides with live ranks (PART=..., MINUTES=15 or 50, NEW=1 to replace what is there)
	@$(RUN) lectures.show lecture --part=$(PART) $(if $(MINUTES),--minutes=$(MINUTES)) $(if $(filter 1,$(NEW)),--new)

site: $(DEV)         ## Write the web site to docs/_build/site/ (SOLUTIONS=1: one with solutions, for you alone)
	@$(RUN) docs.build $(if $(filter 1,$(SOLUTIONS)),--solutions)

pictures: $(DEV) ## Draw the pictures of README and of the site anew, from real runs
	@$(RUN) docs.pictures

release: $(GRADING) ## Build notebooks/ from solutions/ (PART=01_data_split for one)
	@$(RUN) grading.release $(PART)

collect: $(GRADING) ## Sort downloaded hand-ins into grading/submitted/ (PART=... FROM=folder or zip)
	@$(RUN) grading.collect $(PART) "$(FROM)"

autograde: $(GRADING) ## Grade what lies in grading/submitted/ (PART=..., STRICT=1: an error where a hand-in cannot be graded)
	@$(RUN) grading.autograde $(PART)

regrade: $(GRADING) ## Grade one student's hand-in anew (PART=... STUDENT=...)
	@[ -n "$(STUDENT)" ] || { echo "Whose? make regrade PART=01_data_split STUDENT=ada"; exit 1; }
	@$(RUN) grading.autograde $(PART) "$(STUDENT)"

formgrader: $(GRADING) ## Open nbgrader's formgrader: read written answers, give points and comments by hand
	@$(RUN) grading.results.formgrader

grades: $(GRADING) ## Write grading/grades.csv, and the files that Canvas, Moodle and Brightspace import
	@$(RUN) grading.grades

feedback: $(GRADING) ## Write the HTML feedback (PART=...)
	@$(RUN) grading.feedback $(PART)

report: $(GRADING) ## Write a page and tables on what a class did to grading/reports/ (PART=...)
	@$(RUN) grading.report $(PART)

leaderboard: $(GRADING) ## Write grading/leaderboard.html from the graded part 20
	@$(RUN) grading.results.leaderboard

variants: $(DEV) ## Run wrong and right answers against the hidden tests (PART=... for one)
	@$(RUN) grading.variants $(PART)

cheats: $(DEV) ## Run cheats against the hidden tests (PART=... for one)
	@$(RUN) grading.variants --cheats $(PART)
	@[ -n "$(PART)" ] || $(RUN) pytest tests/grading/test_cheats.py tests/grading/test_apart.py

new-part: $(DEV) ## Begin a part of your own: a small one that is right (PART=90_my_part)
	@$(RUN) grading.new_part $(PART)

check: $(DEV) ## Check one part in a minute: format, release, answers, talk, page (PART=01_data_split)
	@[ -n "$(PART)" ] || { echo "Which part? make check PART=01_data_split"; exit 1; }
	@[ -d solutions/$(PART) ] || { echo "There is no part $(PART) in solutions/."; exit 1; }
	@$(BIN)/ruff format --check -q solutions/$(PART) && $(BIN)/ruff check -q solutions/$(PART) || { echo "make lint formats it."; exit 1; }
	@$(RUN) grading.release $(PART)
	@$(RUN) pytest -q -n 2 -m "not root and not brief" -k "($(PART) or every_notebook or all_exercises or folded)" \
	  tests/grading/test_release.py tests/grading/test_points.py tests/lectures/test_talk.py
	@$(RUN) docs.build --part $(PART)

student-archive: $(GRADING) ## Write dist/distributed-training-course.zip, for students
	@$(RUN) grading.authoring.archive

gradescope: $(GRADING) ## Write dist/gradescope-PART.zip, an autograder for Gradescope (PART=..., PYTHON_VERSION=3.12, MINUTES=10)
	@PYTHON_VERSION=$(PYTHON_VERSION) MINUTES=$(MINUTES) $(RUN) grading.autograders.build_archive gradescope $(PART)

autolab: $(GRADING) ## Write dist/autolab-PART/, an autograder for Autolab (PART=..., PYTHON_VERSION=3.12, MINUTES=10)
	@PYTHON_VERSION=$(PYTHON_VERSION) MINUTES=$(MINUTES) $(RUN) grading.autograders.build_archive autolab $(PART)

hub: $(HUB) ## Start JupyterHub for a class, as root (COURSE_INSTRUCTORS=ada,grace; docs/jupyterhub.md has the settings)
	@$(RUN) jupyterhub --config=hub/jupyterhub_config.py

bench: $(DEV) ## Measure (ONLY=name for one)
	@$(RUN) benchmarks $(ONLY)

validate: $(STUDENTS)  ## Print simulated training steps beside what others have measured
	@$(RUN) course_lib.sim validate --out plan/validate.png

lint: $(DEV) ## Format and lint
	@$(BIN)/ruff format -q . && $(BIN)/ruff check --fix -q .

constraints: $(DEV) ## Pin the newest versions that fit
	@$(BIN)/uv pip compile -q --universal --python-version 3.11 --no-emit-index-url --no-header --no-annotate --extra dev --upgrade pyproject.toml -o constraints.txt
