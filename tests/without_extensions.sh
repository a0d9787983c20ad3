#!/usr/bin/env bash
# Deletes each extension in turn, with its tests, in a copy of what git knows, and runs the fast tier there; last, all of
# them together. Needs the packages of `run_tests.sh` in .venv, or in PYTHON's environment.
# usage: without_extensions.sh [NAME ...]
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${PYTHON:-$PWD/.venv/bin/python}
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
all=()
for file in recipe/async_dapo/extensions/*/declared.py; do
  all+=("$(basename "$(dirname "$file")")")
done

needs_agents=(gateway)  # goes with it

without() {
  rm -rf "${copy:?}"/* "$copy/.git"
  git ls-files -z --cached --others --exclude-standard | xargs -0 cp --parents --target-directory="$copy"
  git init -q "$copy"  # results name their commit
  git -C "$copy" -c user.name=copy -c user.email=copy@localhost commit -q --allow-empty -m copy
  local names=("$@")
  [[ " $* " != *" agents "* ]] || names+=("${needs_agents[@]}")
  for name in "${names[@]}"; do
    rm -rf "$copy/recipe/async_dapo/extensions/$name" "$copy/tests/extensions/$name"
  done
  echo "== without ${names[*]}"
  # As `run_tests.sh --fast`.
  (cd "$copy" && HYPOTHESIS_PROFILE=few "$python" -m pytest -q --dist loadfile --no-loadscope-reorder --numprocesses 2 \
    --ignore=tests/{cpu,e2e,gpu_check,ray,scripts,startup} --ignore-glob='tests/extensions/*/'{cpu,e2e,ray,startup} \
    -m "not slow")
}

for name in "${@:-${all[@]}}"; do
  without "$name"
done
[[ $# -gt 0 || ${#all[@]} -lt 2 ]] || without "${all[@]}"
