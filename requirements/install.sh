#!/usr/bin/env bash
# Makes a virtual environment with exactly the packages of cpu.txt, or does nothing if it is there already.
# usage: install.sh VENV
#   PYTHON           interpreter to make it with (default python3.11)
#   TORCH_INDEX_URL  where to find the CPU build of torch, if the configured package sources have only the CUDA build
set -euo pipefail

venv=${1:?usage: install.sh VENV}
python=${PYTHON:-python3.11}
torch_index_url=${TORCH_INDEX_URL:-https://download.pytorch.org/whl/cpu}

lock="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/cpu.txt"
stamp="$venv/installed-lock.sha256"
wanted=$(sha256sum <"$lock")

mkdir -p "$venv"
exec 9>"$venv/install.lock"
flock 9 # a second call waits for the first, then finds its work done

if [[ -f $stamp && $(<"$stamp") == "$wanted" ]]; then
  exit 0
fi

echo "installing the locked packages into $venv (two minutes, 4 GB)"
rm -f "$stamp"
"$python" -m venv "$venv"
pip=("$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps)

# The suffix +cpu asks for the build without CUDA, which is several GB smaller.
torch=$(grep '^torch==' "$lock")
"${pip[@]}" "$torch" 2>/dev/null || "${pip[@]}" --index-url "$torch_index_url" "$torch"
"${pip[@]}" --requirement "$lock"

echo "$wanted" >"$stamp"
