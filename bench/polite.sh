#!/usr/bin/env bash
# How much a worker slows down a compile beside it.
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."
source tools/run/common.sh
export FLOTILLA_TORCH="$(torch_prefix)"
exec "$FLOTILLA_VENV/bin/python" bench/politeness.py "$@"
