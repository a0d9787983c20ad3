#!/usr/bin/env bash
# Packs what a machine with one H100 and no network lacks, into parts of at most 55 MiB: see pack.py.
# usage: pack.sh [FOLDER]     (default outputs/gpu_day)
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
bash requirements/install.sh .venv
exec .venv/bin/python -m benchmarks.gpu_day.pack "${1:-outputs/gpu_day}"
