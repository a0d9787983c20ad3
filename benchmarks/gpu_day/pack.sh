#!/usr/bin/env bash
# Packs what a machine with one H100 and no network lacks, into parts of at most 55 MiB: see pack.py.
# usage: pack.sh [FOLDER]     (default outputs/gpu_day)
set -euo pipefail

folder=${1:+$(realpath --canonicalize-missing -- "$1")} # as named where the user stands
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
bash requirements/install.sh .venv
exec .venv/bin/python -m benchmarks.gpu_day.pack "${folder:-outputs/gpu_day}"
