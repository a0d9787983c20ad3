#!/usr/bin/env bash
# Installs the locked packages, then runs linters, type checker and tests; ends with pytest's summary.
# usage: run_tests.sh [--fast | --nightly] [PYTEST_ARGUMENT ...]
#   --fast     decisions, coroutines, the planner and contracts: no process is started
#   --nightly  also what is slow: see CONTRIBUTING.md
# for example: run_tests.sh -m e2e
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")"
bash requirements/install.sh .venv
export PATH="$PWD/.venv/bin:$PATH"

tests=(--numprocesses 2 --dist loadfile)
case ${1:-} in
  --fast)
    tests+=(-m "core or coroutines or plan or contract")
    shift
    ;;
  --nightly)
    tests+=(--nightly)
    shift
    ;;
esac

ruff check .
ruff format --check .
mypy
PYTHONPATH=. lint-imports
mapfile -t scripts < <(git ls-files --cached --others --exclude-standard '*.sh' .ci/run)
shellcheck "${scripts[@]}"
pytest "${tests[@]}" "$@"
