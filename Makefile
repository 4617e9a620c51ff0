PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: demo test lint bench calibrate study

demo: $(INSTALLED)
	$(BIN)/python recipes/two_stage.py fit --config configs/two_stage_mini.yaml

test: $(INSTALLED)
	$(BIN)/python -m pytest

bench: $(INSTALLED)
	$(BIN)/python -m pip install --quiet --editable '.[bench]'
	$(BIN)/python benchmarks/engine.py
	$(BIN)/python benchmarks/audio_cache.py

# How often the plateau rule ends a stage too early, and how late when it is flat: about ten minutes.
calibrate: $(INSTALLED)
	$(BIN)/python benchmarks/plateau.py

# One stage against two in the embedded world, three seeds each: about half an hour.
study: $(INSTALLED)
	$(BIN)/python benchmarks/two_stage_study.py --folder runs/study

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# torch and torchaudio of one kind first: see the README.
$(INSTALLED): setup.cfg pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet torch==2.14.1 torchaudio==2.11.1
	$(BIN)/python -m pip install --quiet --editable '.[demo,dev]'
	touch $(INSTALLED)
