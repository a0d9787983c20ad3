#!/usr/bin/env bash
# Runs a command with a service beside it, and ends the service with it. A variable gets the service's address.
# usage: beside.sh VARIABLE SERVICE.py COMMAND ...
set -euo pipefail

short() { realpath --relative-base="$PWD" -- "$1"; } # relative where it lies below the folder where the user stands

exec 3< <(exec python3 "$2" 0) # takes a free port, and says where it is
beside=$!
trap 'kill "$beside"' EXIT
read -r _ address <&3
within=$(printf '%q ' bash "$(short "${BASH_SOURCE[0]}")" "$1" "$(short "$2")")
export "$1=$address" QUICKSTART_WITHIN="${within% }"
"${@:3}"
