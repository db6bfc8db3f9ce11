# Every target is the only command you need to type: each makes .venv itself, once, and again when pyproject.toml changes.

VENV   := .venv
BIN    := $(VENV)/bin
MARK   := $(VENV)/.installed
PIP    := $(BIN)/python -m pip --quiet --disable-pip-version-check install

# More for pytest:                       make test PYTEST_ARGS="-k string -x"
PYTEST_ARGS ?=
# Test processes; "0" runs in one:       make test JOBS=4
# One more than the cores of a small machine: tests often wait for other processes.
JOBS        ?= 3
# The torch of test-frameworks:          make test-frameworks TORCH="torch --extra-index-url=URL"
TORCH       ?= torch==2.13.0
# The backends whose locks are written, if not all: make locks BACKENDS="fil sklearn"
BACKENDS    ?=
# A server to compare with:              make bench VS=triton
VS          ?=
# More for the benchmark:                make bench BENCH_ARGS=--help
BENCH_ARGS  ?=
# The interpreter for .venv, if not the first suitable one that was built with optimisations: make demo PYTHON=/opt/python3.12/bin/python3
PYTHON      ?=
# That for .venv-python, if not the newest other one: make test-python OTHER_PYTHON=/opt/python3.13/bin/python3
OTHER_PYTHON ?=

# How often more a test of garbage tries: make fuzz TIMES=1000
TIMES       ?= 100

# A long run of mixed requests:          make soak REQUESTS=100000, or make soak SOAK_ARGS="--minutes 10"
REQUESTS    ?= 1000000
SOAK_ARGS   ?= --requests $(REQUESTS)

# A file's tests share servers: they run in one process. A run of which PYTEST_ARGS leave nothing is no failure.
IN_PARALLEL  = -n $(JOBS) --dist loadfile --no-loadscope-reorder
TESTS        = $(BIN)/python -m pytest $(IN_PARALLEL)
OR_NONE      = || test $$? = 5

# The server, and what it needs, are tested where nothing that stands around it can be imported: see test-alone.
ALONE        = $(VENV)-alone
ALONE_TESTS  = $(ALONE)/bin/python -m pytest -p no:pybackend $(IN_PARALLEL)
OF_SERVER    = $(addprefix tests/,e2e faults http2 integration $(addprefix unit/,backends host http2 sdk stub wire))
NEEDED       = $(addprefix host/,pybackend pybackend_http2) $(addprefix stub/pybackend_,backends stub wire) \
  $(addprefix sdk/,pybackend_sdk c_python_backend_utils.py triton_python_backend_utils.py)
# Those of the packages around it, and what make test runs of them: rows of the specification, and a look at each package.
PACKAGES     = addons bind client testing tools
OF_PACKAGES  = $(addprefix tests/,$(PACKAGES) $(addprefix unit/,$(PACKAGES)))
SMOKE        = $(addprefix tests/addons/,clouds mlflow openai redis storage test_pools.py) tests/bind/test_programs.py tests/client \
  $(addprefix tests/testing/test_harness_,agrees.py surface.py) $(addprefix tests/tools/test_,check.py control.py dev.py infer.py) \
  $(addprefix tests/unit/,addons bind client tools)
# All others: tests of the sources, and those that need the server and packages around it.
OF_ALL       = $(addprefix tests/,architecture backends deploy examples floor gpu hosts sandbox)

# Those that depend most on the interpreter: its standard library, threads, imports and environments.
INTERPRETER_TESTS = tests/architecture/test_libraries.py $(addprefix tests/unit/,host/environment bind sdk stub testing wire) \
  $(addprefix tests/,e2e/environments e2e/in_process testing tools/pack/test_env_command.py)

# A CPython 3.11 or newer that can make environments, of another version than its argument, if it has one.
SUITABLE      = import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11) or sys.version in sys.argv)
OTHER_PYTHONS = $(foreach version,3.13 3.12 3.11,python$(version) /usr/bin/python$(version) \
  $(wildcard $(or $(PYENV_ROOT),$(HOME)/.pyenv)/versions/$(version).*/bin/python3))

# The protobuf schema.
SCHEMA := host/pybackend/modelconfig/protobuf

# The script that draws the site's diagrams; the built site carries it, so that diagrams work offline.
MERMAID_VERSION := 11.17.2
MERMAID_SHA512  := 57a2b70bc101744b0f1595d228c25eea9a50384371b87011afd1af1d7e21878ee501b84c443f6a7f8a042bb2e869143150b31af34feab798073bbdda0a578106
MERMAID         := build/mermaid/mermaid.min.js

# The packages of the clients in JavaScript, where there is npm.
NODE_MODULES    := $(if $(shell command -v npm 2>/dev/null),examples/clients/node_modules/.installed tests/deploy/node_modules/.installed)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-all test-alone test-packages test-addons test-bind test-client test-http2 test-testing test-tools test-python with-python test-frameworks test-openai test-mlflow with-mlflow test-ray with-ray test-console test-gpu test-hosts pictures locks lint format snapshots flags fuzz schema bench bench-ray soak peers docs clean

help: ## what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: $(MARK)-examples $(NODE_MODULES) ## start a server on the examples and call each with an unmodified Triton client
	@$(BIN)/python examples/demo.py

test: lint test-alone $(NODE_MODULES) ## the linters, then the tests that every change must pass: the server's, and a look at each package around it
	$(TESTS) $(OF_ALL) $(SMOKE) $(PYTEST_ARGS) $(OR_NONE)

test-all: lint $(ALONE)/.installed $(NODE_MODULES) ## the linters, then every test: before a release, and before a large change lands
	$(ALONE_TESTS) --all $(OF_SERVER) $(PYTEST_ARGS) $(OR_NONE)
	$(TESTS) --all $(OF_ALL) $(OF_PACKAGES) $(PYTEST_ARGS) $(OR_NONE)
	$(TESTS) --all -m around tests/e2e $(PYTEST_ARGS) $(OR_NONE)
	PYBACKEND_FRONT_ENDS=2 $(TESTS) --all tests/faults $(wildcard tests/e2e/test_*.py) \
	  $(addprefix tests/e2e/,http grpc access observability models repository) tests/client \
	  $(addprefix tests/addons/,clouds mlflow/test_routes.py openai/test_routes.py redis storage test_forwarded_headers.py test_pools.py) \
	  $(PYTEST_ARGS) $(OR_NONE)

test-alone: $(ALONE)/.installed ## the server's tests, in .venv-alone, which has no package that stands around it
	$(ALONE_TESTS) $(OF_SERVER) $(PYTEST_ARGS) $(OR_NONE)
	PYBACKEND_FRONT_ENDS=2 $(ALONE_TESTS) tests/e2e/grpc/test_methods.py tests/e2e/access/test_restrictions.py $(PYTEST_ARGS) $(OR_NONE)

test-packages: $(MARK)-dev $(NODE_MODULES) ## the tests of all packages around the server; test-tools, test-addons and so on: of one
	$(TESTS) $(OF_PACKAGES) $(PYTEST_ARGS)
	$(TESTS) -m around tests/e2e $(PYTEST_ARGS)

test-addons test-bind test-client test-testing test-tools: test-%: $(MARK)-dev $(NODE_MODULES)
	$(TESTS) tests/$* tests/unit/$* $(PYTEST_ARGS)

test-http2: $(MARK)-dev
	$(TESTS) tests/http2 tests/unit/http2 $(PYTEST_ARGS)

test-python: $(BIN)/python ## what depends on the interpreter most, with another CPython than .venv's, in .venv-python, which it makes
	@own="$$($(BIN)/python -c 'import sys; print(sys.version)')"; \
	for candidate in $(or $(OTHER_PYTHON),$(OTHER_PYTHONS)); do \
	  if "$$candidate" -c '$(SUITABLE)' "$$own" 2>/dev/null; then \
	    exec $(MAKE) --no-print-directory VENV=.venv-python PYTHON="$$candidate" with-python; \
	  fi; \
	done; \
	echo "NOT RUN: tests with another CPython than $$own: there is none of 3.11 or newer here that has venv"

with-python: $(MARK)-test-python
	$(TESTS) $(INTERPRETER_TESTS) $(PYTEST_ARGS)

test-frameworks: $(MARK)-dev $(MARK)-frameworks ## every test of the backends, with all frameworks, which it installs
	@# Packing takes minutes: its test is not stuck.
	PYBACKEND_TEST_PACKING=1 $(TESTS) --all -o faulthandler_timeout=3000 tests/backends tests/examples/test_examples.py tests/architecture/test_libraries.py $(PYTEST_ARGS)
	$(BIN)/python -m pytest --all -m torch tests/unit tests/e2e/models $(PYTEST_ARGS)

test-openai: $(MARK)-dev $(MARK)-transformers $(MARK)-openai ## the tests of OpenAI's API with OpenAI's own client, which it installs
	$(BIN)/python -m pytest --all -n 0 tests/addons/openai/test_client.py $(PYTEST_ARGS)

test-mlflow: ## the tests of MLflow's deployment target with MLflow's own clients, in .venv-mlflow, which it makes
	@$(MAKE) --no-print-directory VENV=.venv-mlflow with-mlflow

# MLflow has its own wishes for versions, so it has an environment of its own.
with-mlflow: $(MARK)-mlflow-dev
	$(BIN)/python -m pytest --all -n 0 tests/addons/mlflow/test_target.py $(PYTEST_ARGS)

test-ray: ## the tests of several servers on a cluster of Ray, in .venv-ray, which it makes
	@$(MAKE) --no-print-directory VENV=.venv-ray RAY="-m pytest --all -m ray -o faulthandler_timeout=600 tests/addons/ray tests/architecture/test_libraries.py" with-ray

# Ray brings gigabytes and its own wishes for versions, so it has an environment of its own.
with-ray: $(MARK)-ray-dev
	$(BIN)/python $(RAY) $(PYTEST_ARGS)

test-console: $(MARK)-dev $(MARK)-test-console ## the tests of the console in a browser: needs chromium
	$(BIN)/python -m pytest --all -n 0 -m console tests/tools/console $(PYTEST_ARGS)

pictures: $(MARK)-dev $(MARK)-test-console ## take the manual's pictures of the console: needs chromium
	$(BIN)/python -m tests.tools.console.pictures

test-hosts: $(MARK)-dev $(MARK)-hosts ## the tests of a server inside gunicorn and Jupyter, which it installs
	$(BIN)/python -m pytest --all -n 0 tests/hosts $(PYTEST_ARGS)

test-gpu: $(MARK)-dev ## the tests that need a GPU of NVIDIA, with the torch that is installed; it says what it could not run
	$(BIN)/python -m pytest --all -n 0 tests/gpu $(PYTEST_ARGS)

locks: $(MARK)-dev ## write the newest versions of packages into the locks of the backends' environments
	$(BIN)/python -m tests.support.backend_locks $(BACKENDS)

lint: $(MARK)-dev ## ruff, mypy, the import contracts, and the rules for sources and pages
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m tests.lint

format: $(MARK)-dev ## let ruff format and fix what it can, and wrap the lines of pages
	$(BIN)/ruff check --fix --exit-zero
	$(BIN)/ruff format
	$(BIN)/python -m tests.lint.columns

snapshots: $(MARK)-dev $(NODE_MODULES) ## renew the texts that tests compare as a whole: then read the difference
	$(TESTS) --all --snapshot-update $(shell grep -rl --include='test_*.py' '^ *assert .*\bsnapshot\b' tests) $(PYTEST_ARGS)

flags: $(MARK)-dev ## write the flags of `pybackend serve` into the manual
	$(BIN)/python -m tests.lint.flag_page

fuzz: $(MARK)-dev ## try properties with new examples, and the decoders of requests with much more garbage than the tests do
	FUZZ_TIMES=$(TIMES) $(BIN)/python -m pytest --all --timeout 0 -o faulthandler_timeout=0 -n $(JOBS) $(PYTEST_ARGS) \
	  -m hypothesis tests/unit tests/integration tests/e2e/http/test_garbage.py tests/e2e/test_fast_paths.py

schema: $(MARK)-dev ## compile the .proto files
	$(BIN)/python -m grpc_tools.protoc -I $(SCHEMA)/definitions --include_imports \
	  --descriptor_set_out=$(SCHEMA)/descriptors.binpb $(sort $(shell find $(SCHEMA)/definitions -name '*.proto'))

bench: $(MARK)-bench ## measure speed and memory; with VS=triton beside the reference server
	@VS='$(VS)' $(BIN)/python -m tests.bench $(BENCH_ARGS)

bench-ray: ## what the entrance of an application on Ray costs, and what is lost when parts of it are killed, in .venv-ray
	@$(MAKE) --no-print-directory VENV=.venv-ray RAY="-m tests.bench.many_machines $(BENCH_ARGS)" PYTEST_ARGS= with-ray

soak: $(MARK)-dev ## send a million mixed requests, kill processes meanwhile, and compare what the server holds before and after
	$(BIN)/python -m tests.bench.soak $(SOAK_ARGS)

peers: $(MARK)-dev ## run perf_analyzer, Model Analyzer, the client of KServe and schemathesis, which it fetches, against a server
	$(BIN)/python -m tests.peers

docs: $(MARK)-docs $(if $(shell command -v npm 2>/dev/null),$(MERMAID)) ## build the site into site/
	@# With --quiet, no warning counts for --strict.
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "site/index.html is ready"
	@test -f $(MERMAID) || echo "npm was not found: the site's diagrams load their script from the internet"

clean: ## remove .venv and everything that was built
	rm -rf $(VENV) .venv-* site dist build .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis

# --- The site's diagrams ---

$(MERMAID): Makefile
	@mkdir -p $(@D)
	@npm pack --silent --pack-destination $(@D) mermaid@$(MERMAID_VERSION) >/dev/null
	@echo "$(MERMAID_SHA512)  $(@D)/mermaid-$(MERMAID_VERSION).tgz" | sha512sum --check --quiet
	@tar -xzOf $(@D)/mermaid-$(MERMAID_VERSION).tgz package/dist/mermaid.min.js > $@

# --- Packages of JavaScript: clients, and schemas of other projects ---

# Without the network, the clients and tests that need them are skipped.
%/node_modules/.installed: %/package.json
	@npm install --no-package-lock --no-audit --no-fund --silent --prefix $(<D) && touch $@ || \
	  echo "npm could not install the packages of $<: the clients and tests that need them are skipped"

# --- The environment ---

# .venv/.installed-EXTRA: the package itself, editable, with that extra.
$(MARK)-%: pyproject.toml | $(BIN)/python
	@echo "installing pybackend[$*] into $(VENV) (the first time this takes a minute)"
	@$(PIP) --editable '.[$*]'
	@touch $@

# pip installs all or nothing: if all do not go together here, each is tried by itself, and again the next time.
# The tests of those that are missing are skipped.
$(MARK)-frameworks: pyproject.toml | $(MARK)-dev
	@echo "installing the frameworks into $(VENV) (a few minutes, and gigabytes where torch brings CUDA)"
	@if $(PIP) $(TORCH) --editable '.[frameworks]'; then touch $@; else \
	  $(PIP) $(TORCH) || echo "SKIP: $(TORCH) cannot be installed here"; \
	  for extra in $$(sed -n 's/^frameworks = \["pybackend\[\([^]]*\)\]".*/\1/p' pyproject.toml | tr , ' '); do \
	    $(PIP) --editable ".[$$extra]" || echo "SKIP: pybackend[$$extra] cannot be installed here"; done; fi

# It finds the packages that .venv has, but of ours only those that the server needs: what pip has noted of the others is not
# read there.
PURELIB = import sysconfig; print(sysconfig.get_path("purelib"))
$(ALONE)/.installed: $(MARK)-dev Makefile
	@rm -rf $(ALONE)
	@$(BIN)/python -m venv --without-pip $(ALONE)
	@mkdir $(ALONE)/needed && ln -s $(abspath $(NEEDED)) $(ALONE)/needed
	@printf '%s\n' $(abspath $(ALONE))/needed "$$($(BIN)/python -c '$(PURELIB)')" > "$$($(ALONE)/bin/python -c '$(PURELIB)')/needed.pth"
	@for command in pybackend tritonserver; do \
	  sed '1s|.*|#!$(abspath $(ALONE))/bin/python|' $(BIN)/$$command > $(ALONE)/bin/$$command && chmod +x $(ALONE)/bin/$$command; done
	@for package in $(notdir $(filter-out $(NEEDED) %/__pycache__,$(wildcard host/* sdk/*))); do \
	  ! $(ALONE)/bin/python -P -c "import $$package" 2>/dev/null || { echo "$$package can be imported in $(ALONE)" >&2; exit 1; }; done
	@touch $@

# The first of these that is CPython 3.11 or newer and can make environments, one that was built with optimisations before all others.
PYTHONS   = $(or $(PYTHON),$(foreach version,3.11 3.12 3.13 3.14 3,python$(version)) $(foreach version,3.11 3.12 3.13 3.14,/usr/bin/python$(version)))
OPTIMISED = import sys; sys.path.append("host/pybackend/environment"); import python_build; sys.exit(not python_build.is_optimised())

$(BIN)/python:
	@for wanted in '$(OPTIMISED)' ''; do for candidate in $(PYTHONS); do \
	  if "$$candidate" -c '$(SUITABLE)' 2>/dev/null && "$$candidate" -B -c "$$wanted" 2>/dev/null; then \
	    echo "making $(VENV) with $$("$$candidate" --version) ($$candidate$${wanted:+, an optimised build})"; \
	    "$$candidate" -m venv --clear $(VENV) && exit 0; exit 1; \
	  fi; \
	done; done; \
	echo "pybackend needs CPython 3.11 or newer with its venv module (on Debian and Ubuntu: apt install python3-venv);" \
	     "none was found. Name one with: make PYTHON=/path/to/python3" >&2; exit 1
