#!/usr/bin/env bash
# Installs the locked packages, runs linters and type checker, builds the documents' site, and tests; ends with pytest's
# summary.
# usage: run_tests.sh [--fast | --nightly] [PYTEST_ARGUMENT ...]
#   --fast     decisions, coroutines, planner, report and contracts, in a minute: nothing starts Ray
#   --nightly  all tests, and those that are too slow for every change
# for example: run_tests.sh tests/e2e/test_partial_rollout.py
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")"
bash requirements/install.sh .venv
export PATH="$PWD/.venv/bin:$PATH"

ruff check .
ruff format --check .
mypy
PYTHONPATH=. lint-imports
mapfile -t scripts < <(git ls-files --cached --others --exclude-standard '*.sh' .ci/run)
shellcheck --external-sources "${scripts[@]}"
bash docs/build.sh

# What may run beside what: `ORDER` in tests/conftest.py, and the locks in tests/e2e/conftest.py.
in_two_lanes=(--numprocesses 2 --dist loadfile --no-loadscope-reorder)
# Folders that are named would be loaded, and verl with them, in the process that only divides the work, too.
not_fast=(--ignore=tests/{cpu,e2e,gpu_check,ray,scripts,startup})
[[ ${1:-} == --fast ]] || pip install -qq --disable-pip-version-check --no-deps -r requirements/drafts.txt
case ${1:-} in
  --fast) HYPOTHESIS_PROFILE=few pytest "${in_two_lanes[@]}" "${not_fast[@]}" -m "not slow" "${@:2}" ;;
  "" | --nightly) pytest "${in_two_lanes[@]}" "$@" ;;
  *) pytest "$@" ;;
esac
