#!/usr/bin/env bash
# Builds and runs benchmarks: ./run bench NAME [option...]. Results go to bench/out/NAME.json.
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.."
source tools/run/common.sh

name="${1:-}"
[ -n "$name" ] && [ -x "bench/$name.sh" ] || { echo "run bench: no benchmark '$name'; expected engine, learner, sweep, sync, grid, polite, network or hub" >&2; exit 2; }
tools/run/setup.sh
build_preset release
exec "bench/$name.sh" "${@:2}"
