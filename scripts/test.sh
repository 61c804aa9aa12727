#!/usr/bin/env bash
# Environment, style, types, all tests. Arguments go to pytest: ./scripts/test.sh tests/test_tree.py
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"

ruff check .
ruff format --check .
mypy
python -m pytest "$@"
