#!/usr/bin/env bash
# Installs the locked packages, then runs linters, type checker and tests; ends with pytest's summary.
# usage: run_tests.sh [PYTEST_ARGUMENT ...]     for example: run_tests.sh -m "core or coroutines"
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")"
bash requirements/install.sh .venv
export PATH="$PWD/.venv/bin:$PATH"

ruff check .
ruff format --check .
mypy
mapfile -t scripts < <(git ls-files --cached --others --exclude-standard '*.sh' .ci/run)
shellcheck "${scripts[@]}"
pytest "$@"
