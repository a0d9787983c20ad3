#!/usr/bin/env bash
# Trains a tiny model with the recipe on this machine's CPU: real Ray, vLLM and FSDP2. No GPU, no download of models or data.
# usage: quickstart.sh [--steps N] [--compare] [--output DIR] [-- HYDRA_OVERRIDE ...]
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")"
bash requirements/install.sh .venv
exec .venv/bin/python -m recipe.async_dapo_lab.quickstart "$@"
