#!/usr/bin/env bash
# Builds and runs benchmarks: ./run bench engine|learner|sync|all. Results go to bench/out/NAME.json.
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.."
source tools/run/common.sh

name="${1:-}"
[ "$name" = all ] && name="engine learner sync"
[ -n "$name" ] || { echo "run bench: name one of engine, learner, sync, all" >&2; exit 2; }
tools/run/setup.sh
use_venv
CMAKE_ARGS=-DFLOTILLA_BENCH=ON build_preset release
for one in $name; do
  [ -x "bench/$one.sh" ] || { echo "run bench: no benchmark '$one'; expected engine, learner, sync or all" >&2; exit 2; }
  "bench/$one.sh"
done
