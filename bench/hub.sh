#!/usr/bin/env bash
# A thousand simulated workers on one hub process.
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."
exec python3 bench/hub.py "$@"
