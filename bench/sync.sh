#!/usr/bin/env bash
# Deltas of the weights: bytes, speed and memory, beside zstd and xz.
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."
venv="${FLOTILLA_VENV:-${XDG_CACHE_HOME:-$HOME/.cache}/flotilla/venv}"
exec "$venv/bin/python" bench/sync.py --ours build/release/bin/flotilla "$@"
