#!/usr/bin/env bash
# Installs the locked packages and tests; linters, type checker and the documents' site run beside the first tests. Ends
# with pytest's summary.
# usage: run_tests.sh [--fast | --nightly | --checks] [PYTEST_ARGUMENT ...]
#   --fast     decisions, coroutines, planner, report and contracts, in about a minute: nothing starts Ray, and the site
#              is not built
#   --nightly  all tests, and those that are too slow for every change
#   --checks   linters, types and documents alone
# for example: run_tests.sh tests/e2e/test_partial_rollout.py
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")"
bash requirements/install.sh .venv
unset PYTHONDONTWRITEBYTECODE # many processes import the same
export PATH="$PWD/.venv/bin:$PATH"

if [[ ${1:-} == --checks ]]; then
  ruff check .
  ruff format --check .
  mypy
  PYTHONPATH=. lint-imports
  mapfile -t scripts < <(git ls-files --cached --others --exclude-standard '*.sh' .ci/run)
  shellcheck --external-sources "${scripts[@]}"
  python -m docs.generate --check
  [[ ${2:-} == --fast ]] || bash docs/build.sh
  exit
fi

[[ ${1:-} == --fast ]] || pip install -qq --disable-pip-version-check --no-deps -r requirements/drafts.txt
[[ ${1:-} != --nightly ]] || make outputs/megatron bump-check

# What they say when they fail is told at once. Whatever ends this script ends them, too: they are a process group.
said=$(mktemp -d)
trap 'kill -- -"$checks" 2>/dev/null || true; rm -rf "$said"' EXIT
set -m
{ bash run_tests.sh --checks "${1:-}" >"$said/checks" 2>&1 || { cat "$said/checks" && exit 1; }; } &
checks=$!
set +m

# Two lanes for two cores, and a third one where trainings wait for their processes: `next_file` in tests/conftest.py.
not_fast=(--ignore=tests/{cpu,e2e,gpu_check,ray,scripts,startup} --ignore-glob='tests/extensions/*/'{cpu,e2e,ray,startup})
run() {
  case ${1:-} in
    --fast) HYPOTHESIS_PROFILE=few pytest "${color[@]}" --lanes 2 "${not_fast[@]}" -m "not slow" "${@:2}" ;;
    "" | --nightly) pytest "${color[@]}" --lanes 3 "$@" ;;
    *) pytest "${color[@]}" "$@" ;;
  esac
}
color=()
[[ ! -t 1 ]] || color=(--color=yes) # which pytest cannot see behind a pipe
status=0
trap 'exit 130' INT # as soon as pytest, which Ctrl-C reaches, too, has ended and said how far it came
run "$@" | tee --ignore-interrupts "$said/tests" || status=$?
if ! wait "$checks"; then
  status=1
  tail -n 1 "$said/tests" # the summary is last
fi
exit "$status"
