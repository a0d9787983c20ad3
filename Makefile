.PHONY: quickstart test fast-test format clean

quickstart:
	bash quickstart.sh

test:
	bash run_tests.sh

fast-test:
	bash run_tests.sh --fast

format:
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .

clean:
	rm -rf .venv outputs .hypothesis .mypy_cache .pytest_cache .ruff_cache
