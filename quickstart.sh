#!/usr/bin/env bash
# Trains a tiny model with the recipe on this machine's CPU: real Ray, vLLM and FSDP2. No GPU, no download of models or data.
# Relative paths begin at the folder where it is called.
# usage: quickstart.sh [--steps N] [--compare] [--output DIR] [-- HYDRA_OVERRIDE ...]
set -euo pipefail

unset CDPATH # with it, `cd` prints
root=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
other=$PWD/recipe/async_dapo
if [[ -e $other && ! $other -ef $root/recipe/async_dapo ]]; then
  echo "quickstart: Python would take $other for that of $root; call it from another folder" >&2
  exit 1
fi
bash "$root/requirements/install.sh" "$root/.venv"
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"
exec "$root/.venv/bin/python" -m recipe.async_dapo_lab.quickstart "$@"
