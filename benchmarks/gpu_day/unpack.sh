#!/usr/bin/env bash
# Adds one part of what pack.sh made; with the last of them, unpacks all into a folder for PYTHONPATH.
# usage: unpack.sh PART FOLDER     PART: outputs/gpu_day/part_01, say, with SHA256SUMS beside it
#   PYTHON   interpreter with the machine's packages, torch among them (default python3)
set -euo pipefail

part=${1:?usage: unpack.sh PART FOLDER}
folder=${2:?usage: unpack.sh PART FOLDER}
python=${PYTHON:-python3}
torch=$("$python" -c 'import importlib.util as at; print(*at.find_spec("torch").submodule_search_locations)' 2>/dev/null) ||
  { echo "$python has no torch: name the machine's Python in PYTHON" >&2; exit 1; }
sums=$(dirname "$part")/SHA256SUMS

mkdir -p "$folder.parts"
cp "$part" "$folder.parts/"
(cd "$folder.parts" && grep " $(basename "$part")\$" | sha256sum --check --quiet -) <"$sums"

while read -r sum name; do # one that another pack has left counts as missing
  (cd "$folder.parts" && sha256sum --check --status - 2>/dev/null <<<"$sum  $name") ||
    { echo "$(basename "$part") is there; $name is still missing"; exit 0; }
done <"$sums"

rm -rf "$folder"
mkdir -p "$folder"
cat "$folder.parts"/part_* | xz --decompress --threads=0 --stdout | tar --extract --directory "$folder"
rm -r "$folder.parts"
# Where there is no bytecode, each of a run's processes compiles what it imports, one after the other: all cores do it here.
[[ -d $torch/__pycache__ ]] || compiled=("$torch")
"$python" -m compileall -q -j 0 "$folder" ${compiled[@]+"${compiled[@]}"} >/dev/null || true
# On the GPU's machine: all libraries into the page cache, and the first imports. The parts would pay for both in turn.
if command -v nvidia-smi >/dev/null; then
  find "$folder" "$torch" -name '*.so*' -type f -print0 | xargs -0 -P 8 -n 16 cat >/dev/null || true
  for module in vllm.v1.engine.async_llm verl.trainer.main_ppo ray; do
    PYTHONPATH="$folder" "$python" -c "import $module" >/dev/null 2>&1 &
  done
  wait
fi
echo "unpacked into $folder in $SECONDS s"
