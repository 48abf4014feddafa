#!/usr/bin/env bash
# Sizes of a sweep, with and without shared prefixes: the operating point.
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."
venv="${FLOTILLA_VENV:-${XDG_CACHE_HOME:-$HOME/.cache}/flotilla/venv}"
exec "$venv/bin/python" bench/operating_point.py --ours build/release/bin/flotilla "$@"
