#!/usr/bin/env bash
# Runs a command with a service beside it, and ends the service with it. A variable gets the service's address.
# usage: beside.sh VARIABLE SERVICE.py COMMAND ...
set -euo pipefail

exec 3< <(exec python3 "$2" 0) # takes a free port, and says where it is
beside=$!
trap 'kill "$beside"' EXIT
read -r _ address <&3
export "$1=$address" QUICKSTART_WITHIN="bash examples/beside.sh $1 $2"
"${@:3}"
