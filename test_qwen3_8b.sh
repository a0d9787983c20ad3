#!/usr/bin/env bash
# The real script is in the folder that users copy into a verl checkout; this one starts it from here.
set -euo pipefail
exec bash "$(dirname "${BASH_SOURCE[0]}")/recipe/async_dapo/test_qwen3_8b.sh" "$@"
