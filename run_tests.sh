#!/usr/bin/env bash
# Installs the locked packages, runs linters and type checker, builds the documents' site, and tests; ends with pytest's
# summary.
# usage: run_tests.sh [--fast | --nightly] [PYTEST_ARGUMENT ...]
#   --fast     decisions, coroutines, planner, report and contracts, in about a minute: nothing starts Ray
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
python -m docs.generate --check
bash docs/build.sh

# Two lanes for two cores, and a third one where trainings wait for their processes: `Lanes` in tests/conftest.py.
in_lanes=(--dist loadfile --no-loadscope-reorder --numprocesses)
# Folders that are named would be loaded, and verl with them, in the process that only divides the work, too.
not_fast=(--ignore=tests/{cpu,e2e,gpu_check,ray,scripts,startup} --ignore-glob='tests/extensions/*/'{cpu,e2e,ray,startup})
[[ ${1:-} == --fast ]] || pip install -qq --disable-pip-version-check --no-deps -r requirements/drafts.txt
[[ ${1:-} != --nightly ]] || make outputs/megatron bump-check
case ${1:-} in
  --fast) HYPOTHESIS_PROFILE=few pytest "${in_lanes[@]}" 2 "${not_fast[@]}" -m "not slow" "${@:2}" ;;
  "" | --nightly) pytest "${in_lanes[@]}" 3 "$@" ;;
  *) pytest "$@" ;;
esac
