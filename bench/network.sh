#!/usr/bin/env bash
# How soon a worker behind a home's link has a new version in use. Needs root, or the right to make namespaces.
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."
exec python3 bench/network.py "$@"
