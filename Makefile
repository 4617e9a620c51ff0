PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: demo test lint bench

demo: $(INSTALLED)
	$(BIN)/python recipes/two_stage.py fit --config configs/two_stage_mini.yaml

test: $(INSTALLED)
	$(BIN)/python -m pytest

bench: $(INSTALLED)
	$(BIN)/python -m pip install --quiet --editable '.[bench]'
	$(BIN)/python benchmarks/engine.py
	$(BIN)/python benchmarks/audio_cache.py

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
