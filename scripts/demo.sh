#!/usr/bin/env bash
# Environment, a real tritonserver with the shipped model, one question about the shipped image,
# the streamed answer with its statistics, and a clean shutdown.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
exec python scripts/demo.py "$@"
