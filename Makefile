.PHONY: quickstart test fast-test without-extensions test-gpu-versions test-gpu-sources test-megatron bump-check mutants docs format clean

quickstart:
	bash quickstart.sh

test:
	bash run_tests.sh

fast-test:
	bash run_tests.sh --fast

# The recipe without each extension in turn, in a copy, or without NAMES="one other" only: nothing else may need it.
without-extensions:
	bash tests/without_extensions.sh $(NAMES)

# The engine code on the versions that verl's extra installs on GPUs: 10 GB, some minutes; not part of CI.
test-gpu-versions:
	bash requirements/install.sh .venv-gpu-versions requirements/gpu_versions.txt
	.venv-gpu-versions/bin/pytest tests/contract tests/e2e/test_partial_rollout.py tests/e2e/test_two_nodes.py

# What the installed verl, vLLM and TransferQueue have changed of what the recipe relies on; nightly tests include it.
bump-check:
	VERL_PLATFORM=cpu PYTHONPATH=recipe/async_dapo_lab/cpu/plugin .venv/bin/python -W ignore -m requirements.bump_check

# Which of 300 small errors in core, rollout and start-up no test notices; other ones each day. An hour or two.
mutants:
	.venv/bin/python -m tests.mutants

# The documents as a site in site/, every link and anchor followed; `run_tests.sh` builds it, too.
docs:
	bash docs/build.sh

# What the recipe touches of vLLM's code for GPUs, read from the wheel that verl's extra installs: 280 MB.
test-gpu-sources:
	.venv/bin/pip download --quiet --no-deps --dest outputs/vllm vllm==0.24.0
	.venv/bin/python -m zipfile -e outputs/vllm/vllm-0.24.0-*.whl outputs/vllm
	VLLM_SOURCES=outputs/vllm/vllm .venv/bin/pytest tests/contract/test_gpu_sources.py

# verl's Megatron worker on a CPU; nightly tests include it. 900 MB beside the other packages, which stay as they are.
test-megatron: outputs/megatron
	.venv/bin/pytest --nightly tests/contract/test_megatron_worker.py

outputs/megatron: requirements/megatron.txt requirements/megatron_needs.txt
	rm -rf $@ $@.part
	.venv/bin/pip install -qq --no-deps --target $@.part -r requirements/megatron_needs.txt
	.venv/bin/pip install -qq --no-deps --target $@.part --ignore-requires-python --python-version 3.12 \
		--only-binary :all: --platform manylinux_2_28_x86_64 -r requirements/megatron.txt
	mv $@.part $@

format:
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .

clean:
	rm -rf .venv .venv-gpu-versions .venv-docs site outputs .hypothesis .mypy_cache .pytest_cache .ruff_cache
