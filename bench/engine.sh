#!/usr/bin/env bash
# Prefill, decode and rollouts: our engine and llama.cpp in turns.
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."
venv="${FLOTILLA_VENV:-${XDG_CACHE_HOME:-$HOME/.cache}/flotilla/venv}"
peer="$(bench/peers/llama_cpp.sh)"
exec "$venv/bin/python" bench/engine.py --peer "$peer" --ours build/release/bin/flotilla "$@"
