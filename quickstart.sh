#!/usr/bin/env bash
# Trains a tiny model with the recipe on this machine's CPU: real Ray, vLLM and FSDP2. No GPU, no download of models or data.
# Relative paths begin at the folder where it is called.
# usage: quickstart.sh [--steps N] [--compare] [--output DIR] [-- HYDRA_OVERRIDE ...]
set -euo pipefail

unset CDPATH # with it, `cd` prints
root=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
for package in recipe/async_dapo {verl,vllm}/__init__.py; do # a clone called verl beside others is no package
  if [[ -e $PWD/$package && ! $PWD/$package -ef $root/$package ]]; then
    echo "quickstart: Python would take $PWD/$package for the one that $root runs with; call it from another folder" >&2
    exit 1
  fi
done
bash "$root/requirements/install.sh" "$root/.venv"
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"
exec "$root/.venv/bin/python" -m recipe.async_dapo_lab.quickstart "$@"
