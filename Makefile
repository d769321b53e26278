# make run    set up, build, and watch the demo train        make test   all checks
# make build  the web page and the demo pictures             make wheel  a wheel with both inside
#
# TORCH=torch==2.13.0 chooses the torch to install; PYTHON=python3.12 the interpreter.

ifeq ($(OS),Windows_NT)
$(error Native Windows does not work, since Celery does not support it; use WSL2)
endif

PYTHON ?= python3
TORCH ?=
# What this release was tested with; taken where no NVIDIA driver is found and PyTorch's own CPU builds cannot be reached.
TORCH_TESTED := torch==2.13.0
TORCH_CPU_INDEX := https://download.pytorch.org/whl/cpu

BIN := .venv/bin
PIP := $(BIN)/pip --disable-pip-version-check install --quiet
WITH_NODE := sh ui/with-node.sh
UI_SOURCES := $(shell find ui/src ui/public ui/index.html ui/vite.config.ts ui/tsconfig.json -type f 2>/dev/null)
API_SOURCES := $(shell find server/api server/app.py server/auth.py models/spec models/catalog.py -name '*.py')

.PHONY: run test lint check-ui test-slow build wheel install clean

run: build
	$(BIN)/safelight demo

build: server/static/index.html server/demo/ATTRIBUTION.md

# Two at a time: half of the tests wait for servers and workers that they started.
test: build lint check-ui
	$(BIN)/pytest -n 2 --dist loadfile

test-slow: build
	$(BIN)/pytest -m slow

lint: .venv/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check-ui: server/static/index.html
	$(WITH_NODE) npm --prefix ui run check

wheel: build
	$(PIP) hatchling
	$(BIN)/python -m hatchling build -t wheel

install: .venv/install.stamp

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; set PYTHON=..."; exit 1; }
	$(PYTHON) -m venv .venv

# torch first, so that the project's range finds one installed and leaves it alone.
.venv/torch.stamp: .venv/bin/python
	@if [ -n "$(TORCH)" ]; then echo "torch: $(TORCH)"; $(PIP) $(TORCH); \
	elif [ "$$(uname)" = Darwin ] || command -v nvidia-smi >/dev/null; then echo "torch: from PyPI"; $(PIP) 'torch>=2.6'; \
	else echo "torch: a CPU build"; $(PIP) --retries 1 --timeout 10 --index-url $(TORCH_CPU_INDEX) 'torch>=2.6' 2>/dev/null || $(PIP) $(TORCH_TESTED); fi
	@touch $@

.venv/install.stamp: .venv/torch.stamp pyproject.toml constraints.txt requirements-demo.txt
	$(PIP) --constraint constraints.txt --editable '.[worker]'
	$(PIP) --no-deps --require-hashes --requirement requirements-demo.txt
	@touch $@

.venv/dev.stamp: .venv/install.stamp
	$(PIP) --constraint constraints.txt --editable '.[worker,dev]'
	@touch $@

ui/node_modules/.stamp: .venv/bin/python ui/package-lock.json ui/package.json
	$(WITH_NODE) npm --prefix ui ci --no-audit --no-fund --loglevel=error
	@touch $@

ui/openapi.json: .venv/install.stamp $(API_SOURCES)
	$(BIN)/python -m server.openapi > $@.part
	mv $@.part $@

server/static/index.html: ui/node_modules/.stamp ui/openapi.json $(UI_SOURCES)
	$(WITH_NODE) npm --prefix ui run build --silent
	@touch $@

server/demo/ATTRIBUTION.md: ui/node_modules/.stamp ui/scripts/emoji.mjs
	$(WITH_NODE) node ui/scripts/emoji.mjs server/demo

clean:
	rm -rf .venv ui/node_modules server/static server/demo ui/openapi.json ui/src/api/schema.gen.ts dist
