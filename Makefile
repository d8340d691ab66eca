# PYTHON is the interpreter from which the virtual environments are made. CMAKE_PREFIX_PATH in the environment names
# prefixes with Highway and ONNX Runtime's headers, CXX the compiler.
PYTHON ?= python3
BIN := .venv/bin
JOBS := $(shell nproc)
WITH_BIN := PATH="$(CURDIR)/$(BIN):$$PATH"
CXX_SOURCES := $(shell find csrc tools -name '*.cc' -o -name '*.h')
SOURCES := CMakeLists.txt pyproject.toml $(shell find cmake csrc -type f) $(shell find onnx_ai_rt -name '*.py*' -not -path '*/__pycache__*')

# The oldest onnxruntime that is served, and the oldest that knows opset 23; .venv has the newest.
OLD_ONNXRUNTIMES := 1.21.1 1.23.2
OLD_TESTS := $(addprefix test-onnxruntime-,$(OLD_ONNXRUNTIMES))

# One build folder for the development install and the wheel, so that nothing is compiled twice.
PIP := $(WITH_BIN) CMAKE_BUILD_PARALLEL_LEVEL=$(JOBS) $(BIN)/pip --disable-pip-version-check -q
BUILD_FLAGS := --no-build-isolation --config-settings=cmake.define.ONNX_AI_RT_WERROR=ON
OLD_PIP = .venv-ort$*/bin/pip --disable-pip-version-check -q

.DEFAULT_GOAL := build
.PHONY: build demo test test-newest $(OLD_TESTS) lint format bench wheel fuzz clean
.SECONDARY:

build: .venv/built

demo: .venv/built
	$(BIN)/python examples/quickstart.py

test: test-newest $(OLD_TESTS)

test-newest: .venv/built dist/built
	$(BIN)/pytest -n $(JOBS)

# The session tests against an older onnxruntime, with the wheel as a user has it.
$(OLD_TESTS): test-onnxruntime-%: .venv-ort%/built
	PYTHONSAFEPATH=1 .venv-ort$*/bin/pytest -n $(JOBS) tests/ort

lint: .venv/built
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/clang-format --dry-run --Werror $(CXX_SOURCES)
	$(BIN)/python tools/check_includes.py
	$(BIN)/mypy
	$(WITH_BIN) $(BIN)/run-clang-tidy.py -quiet -j $(JOBS) -p $(shell ls -td build/cp* | head -1) csrc/

format: .venv/tools
	$(BIN)/ruff check --fix
	$(BIN)/ruff format
	$(BIN)/clang-format -i $(CXX_SOURCES)

# Options of `python -m benchmarks run` in BENCH.
bench: .venv/bench
	$(BIN)/python -m benchmarks run $(BENCH)

wheel: dist/built

# The reader and the rewriter of caches on damaged bytes, with sanitizers. FUZZ_SECONDS, FUZZ_SEED: how long and which.
FUZZ_SECONDS := 60
FUZZ_SEED := 1
fuzz: .venv/built
	$(WITH_BIN) cmake --build $(shell ls -td build/cp* | head -1) --target cache_fuzzer
	$(shell ls -td build/cp* | head -1)/cache_fuzzer $(FUZZ_SECONDS) $(FUZZ_SEED) tests/data/paged_cache/*.pb

clean:
	rm -rf .venv .venv-ort* .deps build dist benchmarks/results

.venv/tools: pyproject.toml
	@sh tools/check_tools.sh $(PYTHON)
	$(PYTHON) -m venv .venv
	$(PIP) install 'scikit-build-core>=0.11' 'pybind11>=3.0' cmake ninja
	touch $@

.venv/built: .venv/tools $(SOURCES)
	$(PIP) install $(BUILD_FLAGS) -e '.[onnxruntime,test,wheel,lint]'
	touch $@

# The suite measures without torch where there is none.
.venv/bench: .venv/built benchmarks/requirements.txt
	$(PIP) install -r benchmarks/requirements.txt || $(PIP) install matplotlib
	touch $@

dist/built: .venv/built
	rm -rf build/wheel dist
	$(PIP) wheel --no-deps $(BUILD_FLAGS) --config-settings=cmake.define.ONNX_AI_RT_BUNDLE_HIGHWAY=OFF -w build/wheel .
	$(WITH_BIN) $(BIN)/auditwheel repair -w dist build/wheel/*.whl
	touch $@

.venv-ort%/built: dist/built
	test -d .venv-ort$* || $(PYTHON) -m venv .venv-ort$*
	$(OLD_PIP) install "$$(echo dist/*.whl)[onnxruntime,test]" onnxruntime==$*
	$(OLD_PIP) install --force-reinstall --no-deps dist/*.whl
	touch $@
