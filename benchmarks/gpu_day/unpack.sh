#!/usr/bin/env bash
# Adds one part of what pack.sh made; with the last of them, unpacks all into a folder for PYTHONPATH.
# usage: unpack.sh PART FOLDER     PART: outputs/gpu_day/part_01, say, with SHA256SUMS beside it
set -euo pipefail

part=${1:?usage: unpack.sh PART FOLDER}
folder=${2:?usage: unpack.sh PART FOLDER}
sums=$(dirname "$part")/SHA256SUMS

mkdir -p "$folder.parts"
cp "$part" "$folder.parts/"
(cd "$folder.parts" && grep " $(basename "$part")\$" | sha256sum --check --quiet -) <"$sums"

while read -r _ name; do
  [[ -f $folder.parts/$name ]] || { echo "$(basename "$part") is there; $name is still missing"; exit 0; }
done <"$sums"

rm -rf "$folder"
mkdir -p "$folder"
cat "$folder.parts"/part_* | xz --decompress --threads=0 --stdout | tar --extract --directory "$folder"
rm -r "$folder.parts"
echo "unpacked into $folder in $SECONDS s"
