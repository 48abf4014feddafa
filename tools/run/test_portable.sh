#!/usr/bin/env bash
# Tests on processors that this machine is not, emulated by qemu: the exact engine on older x86-64 ones, and, cross-built,
# everything that a worker's numbers depend on (text, weights, engine) on aarch64 with and without dot products.
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.."
source tools/run/common.sh
tools/run/sysroot_aarch64.sh

build_preset release engine_test
ctest --test-dir build/release --output-on-failure --no-tests=error -L portable

build_preset aarch64 flotilla base_test model_test engine_test
qemu-aarch64-static -L "$FLOTILLA_SYSROOT" build/aarch64/bin/flotilla version
# Left out: whole models and the oracles in Python, which take long under emulation; programs that were not built.
ctest --test-dir build/aarch64 --output-on-failure --no-tests=error -j "$(nproc)" -E 'EngineGoldenWhole|Oracle|_NOT_BUILT$|^tools'
