#!/usr/bin/env bash
# The learner's optimizer step, beside the product of its matrices.
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."
mkdir -p bench/out
export OMP_WAIT_POLICY=passive  # as flotilla-learner sets it: waiting is not work
exec build/release/bin/learner_bench --json bench/out/learner.json "$@"
