#!/usr/bin/env bash
# Sets up, builds and tests.
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.."
source tools/run/common.sh

all=0
label=""
for argument in "$@"; do
  case "$argument" in
    --all) all=1 ;;
    -*) echo "run test: unknown option '$argument'; expected --all or a label" >&2; exit 2 ;;
    *) label=$argument ;;
  esac
done

[ "$label" = portable ] && exec tools/run/test_portable.sh
if [ $all -eq 1 ]; then tools/run/setup.sh clang-16 libclang-rt-16-dev; else tools/run/setup.sh; fi
python3 tools/check_layers.py
build_preset release
# One test at a time a core; tests that need both cores say so with RUN_SERIAL.
selection=(-LE long)
[ -n "$label" ] && selection=(-L "$label")
ctest --test-dir build/release --output-on-failure --no-tests=error -j "$(nproc)" "${selection[@]}"

if [ $all -eq 1 ]; then
  for sanitizer in asan tsan; do
    build_preset $sanitizer
    ctest --test-dir build/$sanitizer --output-on-failure --no-tests=error -j "$(nproc)" -LE long
  done
  for program in build/asan/bin/*_fuzz; do basename "$program"; done | xargs -P "$(nproc)" -I{} tools/run/fuzz.sh 30 {}
fi
