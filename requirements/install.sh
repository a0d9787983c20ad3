#!/usr/bin/env bash
# Makes a virtual environment with exactly the packages of cpu.txt, or does nothing if it is there already.
# usage: install.sh VENV
#   PYTHON           interpreter to make it with (default python3.11)
#   TORCH_INDEX_URL  package index with the CPU build of torch, if the configured sources have only the CUDA build
set -euo pipefail

venv=${1:?usage: install.sh VENV}
python=${PYTHON:-python3.11}
torch_index=(${TORCH_INDEX_URL:+--index-url "$TORCH_INDEX_URL"})

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
if ! "${pip[@]}" ${torch_index[@]+"${torch_index[@]}"} "$torch"; then
  echo "$torch was not installed (see above); if it was not found, set TORCH_INDEX_URL to an index with torch's CPU" \
    "builds, such as the one that torch's installation page gives for the compute platform CPU" >&2
  exit 1
fi
"${pip[@]}" --requirement "$lock"

echo "$wanted" >"$stamp"
