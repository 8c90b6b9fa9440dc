# opforge. `make demo` and `make test` set everything up first; nothing else is needed than Python >= 3.11 and g++.
SHELL := /bin/bash
BIN := .venv/bin
.PHONY: setup demo test test-all campaigns check redteam trust gpu docs clean

setup:
	@scripts/setup.sh

demo: setup  ## the main job on this machine, GPU or not, with a report at the end
	@$(BIN)/opforge doctor || true
	@$(BIN)/opforge bench softmax layernorm --dtype float32 --budget 0.3 --quick --report reports/demo
	@echo "open reports/demo/report.html"

test: setup  ## the tests, without those that take long
	@$(BIN)/python -m pytest -n 2 --dist loadgroup -m "not slow and not campaign and not offline"

test-all: setup  ## every test that this machine can run
	@$(BIN)/python -m pytest -n 2 --dist loadgroup

campaigns: setup  ## what takes longer, for CI: large kernels compiled offline, the red team and the trust figures on smaller numbers
	@$(BIN)/python -m pytest -n 2 --dist loadgroup -m "campaign or offline"
	@$(BIN)/python scripts/trust.py --quick

trust: setup  ## measure the false alarms, the power and the losses of opforge itself; QUICK=1 takes minutes
	@$(BIN)/python scripts/trust.py $(if $(QUICK),--quick)

check: setup  ## format, lint, types, quick tests
	@$(BIN)/ruff format --check src tests scripts tools examples
	@$(BIN)/ruff check src tests scripts tools examples
	@$(BIN)/mypy
	@$(BIN)/python -m pytest -m "not slow" tests/test_arrows.py tests/test_core.py

redteam: setup  ## planted cheats, honest kernels, planted bugs and hostile kernels against the verifier
	@$(BIN)/python scripts/redteam.py

gpu: setup  ## on a machine with GPUs: the tests that need one, then the bench of scripts/gpu-plan.txt; records land in results/
	@scripts/gpu.sh

docs: setup  ## pages generated from the code: docs/map.md, docs/verbs/, README tables
	@$(BIN)/python scripts/docs.py

clean:
	rm -rf .venv reports build dist .pytest_cache .ruff_cache .mypy_cache
