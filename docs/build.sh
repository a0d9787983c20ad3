#!/usr/bin/env bash
# Builds the documents as a site in site/, every link and anchor followed. Its packages go into .venv-docs.
# usage: docs/build.sh [MKDOCS_OPTION ...]
#   PYTHON   interpreter to make .venv-docs with (default python3.11)
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
if ! cmp --silent requirements/docs.txt .venv-docs/installed.txt; then
  "${PYTHON:-python3.11}" -m venv --clear .venv-docs
  .venv-docs/bin/pip install --quiet --no-deps --requirement requirements/docs.txt
  cp requirements/docs.txt .venv-docs/installed.txt
fi
NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict "$@"
