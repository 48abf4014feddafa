#!/usr/bin/env bash
# What group size, headroom and learning rate do to deltas and to the policy. Begin with its --help.
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."
venv="${FLOTILLA_VENV:-${XDG_CACHE_HOME:-$HOME/.cache}/flotilla/venv}"
exec "$venv/bin/python" bench/grid_study.py "$@"
