# Each target calls one tool. PYTHON: the interpreter that .venv is made from.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SOURCES := CMakeLists.txt pyproject.toml $(shell find cmake csrc -type f) $(shell find onnx_ai_rt -name '*.py')

.DEFAULT_GOAL := build
.PHONY: build

build: $(VENV)/built

$(VENV)/tools: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q scikit-build-core pybind11 cmake ninja -e .[onnxruntime,test,wheel,lint]
	touch $@

$(VENV)/built: $(VENV)/tools $(SOURCES)
	$(BIN)/pip install -q --no-build-isolation --no-deps -C cmake.define.ONNX_AI_RT_WERROR=ON -e .
	touch $@
