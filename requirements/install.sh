#!/usr/bin/env bash
# Makes a virtual environment with exactly the packages of a lock, or does nothing if it is there already.
# usage: install.sh VENV [LOCK]      LOCK: default cpu.txt beside this script
#   PYTHON           interpreter to make it with (default python3.11)
#   TORCH_INDEX_URL  package index to take torch's CPU build from where the configured sources have only the CUDA build
#                    (default: PyTorch's own)
set -euo pipefail

requirements=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
venv=${1:?usage: install.sh VENV [LOCK]}
lock=${2:-$requirements/cpu.txt}
python=${PYTHON:-python3.11}

stamp="$venv/installed-lock.sha256"
wanted=$(sha256sum <"$lock")

mkdir -p "$venv"
exec 9>"$venv/install.lock"
flock 9 # a second call waits for the first, then finds its work done

if [[ -f $stamp && $(<"$stamp") == "$wanted" ]]; then
  exit 0
fi

echo "installing the locked packages into $venv (a minute, 4 GB)"
rm -f "$stamp"
"$python" -m venv "$venv"
"$venv/bin/python" "$requirements/install_packages.py" "$lock"

echo "$wanted" >"$stamp"
