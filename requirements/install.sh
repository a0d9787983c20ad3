#!/usr/bin/env bash
# Makes a virtual environment with exactly the packages of cpu.txt, or does nothing if it is there already.
# usage: install.sh VENV [CHANGES]     CHANGES: a file of packages to install instead of those of the same name
#   PYTHON           interpreter to make it with (default python3.11)
#   TORCH_INDEX_URL  package index to take torch's CPU build from where the configured sources have only the CUDA build
#                    (default: PyTorch's own)
set -euo pipefail

unset CDPATH # with it, `cd` prints
requirements=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
venv=${1:?usage: install.sh VENV [CHANGES]}
locks=("$requirements/cpu.txt" "${@:2}")
python=${PYTHON:-python3.11}

stamp="$venv/installed-lock.sha256"
wanted=$(cat "${locks[@]}" | sha256sum)

mkdir -p "$venv"
exec 9>"$venv/install.lock"
flock 9 # a second call waits for the first, then finds its work done

if [[ -f $stamp && $(<"$stamp") == "$wanted" ]]; then
  exit 0
fi

echo "installing the locked packages into $venv (a minute, 4 GB)"
rm -f "$stamp"
"$python" -m venv "$venv"
"$venv/bin/python" "$requirements/install_packages.py" "${locks[@]}"

echo "$wanted" >"$stamp"
