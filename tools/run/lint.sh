#!/usr/bin/env bash
# Layers, format and clang-tidy. `./run lint --fix` formats in place.
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.."
source tools/run/common.sh
tools/run/setup.sh clang-format-16 clang-tidy-16

python3 tools/check_layers.py
mapfile -t files < <(git ls-files '*.cc' '*.h')
if [ "${1:-}" = "--fix" ]; then
  clang-format-16 -i "${files[@]}"
else
  clang-format-16 --dry-run -Werror "${files[@]}"
fi
[ -f build/release/compile_commands.json ] || build_preset release
say "clang-tidy"
# The compile commands are GCC's, which has warnings that Clang does not know. torch's headers take a minute a file under
# clang-tidy and are not ours; src/learn/torch is left to the compiler. src/engine/simde and
# src/engine/emulated define Intel's names.
mapfile -t sources < <(git ls-files 'src/*.cc' 'apps/*.cc' | grep -v -e '_test\.cc$' -e '^src/learn/torch/' -e '^src/engine/simde/' -e '^src/engine/emulated/')
printf '%s\n' "${sources[@]}" | xargs -P "$(nproc)" -n 4 \
  clang-tidy-16 -p build/release --quiet --extra-arg=-Wno-unknown-warning-option
