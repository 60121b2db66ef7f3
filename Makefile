# vdali: `make demo` and `make test` are all the set-up there is.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check install --quiet --constraint constraints.txt
SOURCES := $(shell git ls-files '*.py' 2>/dev/null)

.DEFAULT_GOAL := help
.PHONY: help demo test browser lint engines bench gpu-check format clean
MODELS ?= efficientnet_lite0 timm/mobilenetv3_small_100 timm/resnet50 timm/vit_small_patch16_224
PRECISIONS ?= fp32,fp16,int8
TARGETS ?=
PARTS ?=
GPU_JSON ?= gpu-check.json

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

demo: $(VENV)/demo.done  ## install, then label real photos with a trained model
	rm -rf demo-out
	$(BIN)/vdali run --precision fp32 --output demo-out

test: $(VENV)/test.done browser  ## install the test extras and run every test
	$(BIN)/python -m pytest

# The report is looked at in a browser too. That test is skipped, visibly, where none can be had.
browser:
	@command -v chromium || command -v chromium-browser || command -v google-chrome || { \
		if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
			echo "No Chromium for the tests of the report: apt-get installs Debian's."; \
			timeout 60 apt-get update -qq; \
			DEBIAN_FRONTEND=noninteractive timeout 300 apt-get install -y -qq --no-install-recommends chromium; \
		fi >&2; \
		command -v chromium || echo "No Chromium can be had here: the report's tests in a browser are skipped." >&2; }

lint: $(VENV)/test.done  ## format check, lint, types, import rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	mkdir -p $(VENV)/types && ln -sfn ../.. $(VENV)/types/vdali
	cd $(VENV)/types && ../bin/mypy --config-file ../../pyproject.toml -p vdali
	$(BIN)/lint-imports --no-cache

engines: $(VENV)/engines.done  ## export MODELS at PRECISIONS, judge each on real pictures, build TensorRT plans
	$(BIN)/vdali engines make $(MODELS) --precisions $(PRECISIONS) $(if $(TARGETS),--target $(TARGETS)) $(if $(IMAGES),--images $(IMAGES))

bench: $(VENV)/test.done  ## measure against PyTorch, loaders, stages, bad pictures; LARGE=FOLDER of photos adds large ones
	$(BIN)/python -m vdali.benchmarks $(if $(LARGE),--large $(LARGE))
	$(BIN)/vdali report bench-out/bench.json --output bench-out/report.html

# A machine without a GPU is told so by the standard library alone, before anything is installed.
gpu-check:  ## on a machine with a GPU: prove and measure there what only a GPU can show (PARTS="torch dali": only these)
	@$(PYTHON) benchmarks/gpu_check/driver.py
	@$(BIN)/python -c 'import vdali' 2>/dev/null || $(MAKE) --no-print-directory $(VENV)/test.done
	$(BIN)/python benchmarks/gpu_check/run.py $(foreach part,$(PARTS),--part $(part)) --json $(GPU_JSON)

format: $(VENV)/test.done  ## rewrite the sources as the formatter wants them
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:  ## remove what was installed and built
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit("vdali needs Python >= 3.11, this is " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)

# torch and torchvision come as a pair, ahead of all that depends on them.
$(VENV)/torch.done: constraints.txt | $(VENV)/bin/python
	$(PIP) torch torchvision
	touch $@

$(VENV)/demo.done: pyproject.toml constraints.txt $(VENV)/torch.done
	$(PIP) --editable '.[demo]'
	touch $@

$(VENV)/engines.done: $(VENV)/demo.done
	$(BIN)/python -c 'import importlib.util as u, sys; sys.exit(not (u.find_spec("tensorrt") or u.find_spec("tensorrt_rtx")))' \
		|| $(PIP) --editable '.[rtx]'
	touch $@

$(VENV)/test.done: pyproject.toml constraints.txt $(VENV)/torch.done
	$(PIP) --editable '.[test]'
	touch $@ $(VENV)/demo.done
