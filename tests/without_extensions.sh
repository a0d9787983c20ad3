#!/usr/bin/env bash
# Deletes each extension in turn, with its tests and those that stand on it, in a copy of what git knows, and runs the
# fast tier there; last, all of them together. Two at a time, each in a copy of its own. Needs the packages of
# `run_tests.sh` in .venv, or in PYTHON's environment.
# usage: without_extensions.sh ["NAME ..." ...]    each argument is a case: extensions that are deleted together
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${PYTHON:-$PWD/.venv/bin/python}
cases=("$@")
words="$*"
for name in $words; do
  [[ -e recipe/async_dapo/extensions/$name ]] || { echo "no extension is called $name" && exit 2; }
done
if [[ $# -eq 0 ]]; then
  for file in recipe/async_dapo/extensions/*/declared.py; do
    cases+=("$(basename "$(dirname "$file")")")
  done
  cases+=("${cases[*]}")
fi

stand_on_these='
import sys
from recipe.async_dapo.config.extensions import with_what_stands_on
print(*with_what_stands_on(sys.argv[1].split()))'

make_copy() {
  mkdir "$1"
  git ls-files -z --cached --others --exclude-standard | xargs -0 cp --parents --target-directory="$1"
  git init -q "$1" # results name their commit
  git -C "$1" -c user.name=copy -c user.email=copy@localhost commit -q --allow-empty -m copy
}

# As `run_tests.sh --fast`, in one lane. The folders come back afterwards: all else keeps its bytecode.
without() {
  local copy=$1 names=$2 name folder kept status=0
  names=$("$python" -c "$stand_on_these" "$names") || return 1
  kept=$copy.kept
  for name in $names; do
    for folder in {recipe/async_dapo,tests}/extensions/"$name"; do
      [[ -e $copy/$folder ]] || continue
      mkdir -p "$kept/$(dirname "$folder")" && mv "$copy/$folder" "$kept/$folder" || return 1
    done
  done
  (cd "$copy" && PYTHONDONTWRITEBYTECODE='' HYPOTHESIS_PROFILE=few "$python" -m pytest -q \
    --ignore=tests/{cpu,e2e,gpu_check,ray,scripts,startup} --ignore-glob='tests/extensions/*/'{cpu,e2e,ray,startup} \
    -m "not slow") >"$copy.said" 2>&1 || status=$?
  { echo "== without $names" && cat "$copy.said"; } >"$copy.told"
  cat "$copy.told"
  cp -a "$kept/." "$copy" && rm -rf "$kept" || return 1
  return "$status"
}

# A copy takes every second case.
lane() {
  local status=0 index
  make_copy "$copies/$1"
  for ((index = $1; index < ${#cases[@]}; index += 2)); do
    without "$copies/$1" "${cases[index]}" || { status=1 && echo "== FAILED without ${cases[index]}" >>"$copies/failed"; }
  done
  return "$status"
}

copies=$(mktemp -d)
trap 'kill -- -"$first" -"$second" 2>/dev/null || true; rm -rf "$copies"' EXIT
set -m # process groups, which end with this script
lane 0 &
first=$!
lane 1 &
second=$!
status=0
wait "$first" || status=1
wait "$second" || status=1
[[ $status -eq 0 ]] || cat "$copies/failed"
exit "$status"
