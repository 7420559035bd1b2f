# Chores of developers. The product's own front door is ./tangram.
.DEFAULT_GOAL := help
PYTHON := .venv/bin/python

.PHONY: help setup run test check lint fix types sizes migrate lock bench docs pictures

help: ## show this
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## */\1|/' | \
		while IFS='|' read -r name text; do printf '  %-10s %s\n' "$$name" "$$text"; done

setup: ## install everything that running and testing need
	./tangram test --version

run: ## start a whole Tangram here (./tangram up)
	./tangram up

test: ## unit and architecture tests; needs Python packages alone
	./tangram test --quick

check: ## exactly what CI runs
	.ci/run

lint: ## ruff, mypy, import contracts, missing migrations
	./tangram lint

fix: ## let ruff mend what it can
	$(PYTHON) -m ruff check --fix .
	$(PYTHON) -m ruff format .

types: ## mypy alone
	$(PYTHON) -m mypy

sizes: ## how long files and functions are
	$(PYTHON) -m tests.architecture.sizes

migrate: ## write migrations for changed models
	$(PYTHON) manage.py makemigrations

lock: ## rewrite requirements/*.lock from what is installed
	$(PYTHON) -m requirements.lock

bench: ## the measurements behind the README's table
	$(PYTHON) -m benchmarks

docs: ## redraw the documents that are made from code
	$(PYTHON) -m docs.state_machines
	$(PYTHON) -m docs.layers

pictures: ## take the pictures of the documents from a running Tangram (Chromium, 4 minutes)
	DJANGO_SETTINGS_MODULE=tangram_web.settings TANGRAM_HOME=$$(mktemp -d) $(PYTHON) -c \
	  "import django; django.setup(); from docs.pictures import main; main()" $(PICTURES)
