# opforge. `make demo` and `make test` set everything up first; nothing else is needed than Python >= 3.11 and g++.
SHELL := /bin/bash
BIN := .venv/bin
# many containers keep no byte code: every process of the tests would compile torch and Inductor again, seconds each
unexport PYTHONDONTWRITEBYTECODE
# what takes long is in the campaigns, or in test-all alone
EVERYDAY := not slow and not campaign and not offline
# what outlives a checkout, so that the next one does not make it again: compiled kernels of the tests, mypy's knowledge of the
# files, how long campaigns took, the last commit that passed
export OPFORGE_KEPT ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/opforge-tests
export OPFORGE_TEST_CACHE ?= $(OPFORGE_KEPT)/kernels
TESTS := -n 2 --dist loadgroup
.PHONY: setup demo test test-all campaigns landing check lint redteam trust tuning gpu map docs clean

# a GPU has ten workloads of each: two of them show what there is to see; two cores have two minutes
DEMO := --dtype float32 --budget 0.3 --quick
DEMO_SOFTMAX := --workload vocabulary_gpt2 -i torch_eager -i torch_compile -i cpp_twopass -i triton_onepass
DEMO_LAYERNORM := --workload gpt2_xl_prompt -i torch_eager -i cpp_twopass -i triton_onchip

setup:
	@scripts/setup.sh

demo: setup  ## the main job on this machine, GPU or not, with a report at the end
	@$(BIN)/opforge doctor || true
	@if command -v nvidia-smi >/dev/null; then \
	  $(BIN)/opforge bench softmax layernorm $(DEMO) --report reports/demo --workload rows_4k --workload rows_32k; \
	else \
	  $(BIN)/opforge bench layernorm $(DEMO) $(DEMO_LAYERNORM) --report reports/demo/layernorm && \
	  $(BIN)/opforge bench softmax $(DEMO) $(DEMO_SOFTMAX) --report reports/demo && \
	  echo "open reports/demo/layernorm/report.html"; \
	fi
	@echo "open reports/demo/report.html"

test: setup  ## the tests, without those that take long
	@$(BIN)/python -m pytest $(TESTS) -m "$(EVERYDAY)"

test-all: setup  ## every test that this machine can run
	@$(BIN)/python -m pytest $(TESTS)

campaigns: setup  ## what takes longer, as a landing chooses it; ALL=1 for all of it, as a release asks
	@$(BIN)/python -m pytest $(TESTS) -m "campaign or offline" --campaigns $(if $(ALL),all,chosen)

landing: lint  ## what CI runs: lint, then in one start every day's tests and the campaigns that the change reaches
	@$(BIN)/python -m pytest $(TESTS) --campaigns chosen

trust: setup  ## measure the false alarms, the power and the losses of opforge itself; QUICK=1 takes minutes, PARTS=folder LIMIT=120 goes on where the last run ended
	@$(BIN)/python scripts/trust.py $(if $(QUICK),--quick) $(if $(PARTS),--parts $(PARTS)) $(if $(LIMIT),--limit $(LIMIT))

tuning: setup  ## how good the search is, replayed over measured spaces: SPACES=folder (without it two made-up ones), SEEDS=20
	@$(BIN)/python scripts/tuning.py $(SPACES) --seeds $(or $(SEEDS),100)

lint: setup  ## format, lint, types
	@$(BIN)/ruff format --check src tests scripts tools examples
	@$(BIN)/ruff check src tests scripts tools examples
	@mkdir -p $(OPFORGE_KEPT) && $(BIN)/mypy --cache-dir $(OPFORGE_KEPT)/mypy

check: lint  ## lint and quick tests: less than a minute
	@$(BIN)/python -m pytest $(TESTS) -m "$(EVERYDAY)" $$(cat tests/checked.txt)

redteam: setup  ## planted cheats, honest kernels, planted bugs and hostile kernels against the verifier
	@$(BIN)/python scripts/redteam.py

gpu: setup  ## on a machine with GPUs: the tests that need one, then the records renewed in results/, what dispatch would pick wrongly first; LIMIT=540 for a slice
	@scripts/gpu.sh

map: setup  ## docs/map.md: where each thing lives, drawn from the code as it is; git does not keep it
	@$(BIN)/python scripts/house_map.py

docs: setup  ## pages generated from the code: docs/verbs/, README tables
	@$(BIN)/python scripts/docs.py

clean:
	rm -rf .venv reports build dist .pytest_cache .ruff_cache .mypy_cache
