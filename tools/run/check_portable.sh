#!/usr/bin/env bash
# Compiles base, telemetry, model, sync and engine for macOS and Windows. Nothing is linked or run: a check that the code
# keeps to what these systems have, and not yet a promise that it works there.
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.."
source tools/run/common.sh

targets=(x86_64-macos aarch64-macos x86_64-windows-gnu)
[ $# -eq 0 ] || targets=("$@")
modules=(base telemetry model sync engine)
# These speak to Linux (scheduling classes) or POSIX (files and locks, memory maps, terminals): other systems need a twin.
linux='^src/base/priority\.cc$'
posix='^src/(base/files|engine/page_buffer|sync/signing|telemetry/append_file|telemetry/terminal)\.cc$'

tools/run/setup.sh
"$FLOTILLA_VENV/bin/python" -m ziglang version >/dev/null 2>&1 ||
  "$FLOTILLA_VENV/bin/python" -m pip install -q --disable-pip-version-check -r tools/requirements-portable.txt ||
  fail "pip could not install tools/requirements-portable.txt"

# The libraries' headers without the C library's that stand beside them.
export scratch
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir -p "$scratch/include/openssl"
for name in fmt spdlog nlohmann xxhash.h xxh3.h pcre2.h utf8proc.h zstd.h zstd_errors.h; do
  ln -s "/usr/include/$name" "$scratch/include/$name"
done
ln -s /usr/include/openssl/*.h "$scratch/include/openssl/"
ln -sf "/usr/include/$(uname -m)-linux-gnu/openssl/"*.h "$scratch/include/openssl/"

compile() {
  local target=$1 source=$2 object options=()
  object="$scratch/$target-${source//\//-}.o"
  case "$source" in
    *_avx2.cc) options=(-mavx2 -mfma -mf16c) ;;
    *_avx_vnni.cc) options=(-mavx2 -mfma -mf16c -mavxvnni) ;;
    *_avx512.cc) options=(-mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni) ;;
    *_amx.cc) options=(-mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mamx-tile -mamx-int8) ;;
  esac
  "$FLOTILLA_VENV/bin/python" -m ziglang c++ -target "$target" -std=c++20 -O0 -Wall -Wextra -Werror -ffp-contract=off \
    -Isrc -isystem "$scratch/include" -DFLOTILLA_VERSION='"check"' "${options[@]}" -c "$source" -o "$object" ||
    { echo "run check-portable: $source does not compile for $target" >&2; return 1; }
  rm -f "$object"
}
export -f compile

for target in "${targets[@]}"; do
  mapfile -t sources < <(printf 'src/%s\n' "${modules[@]}" | xargs -I{} find {} -maxdepth 1 -name '*.cc' | sort | grep -v -e '_test\.cc$')
  missing=$linux
  case "$target" in *windows*) missing="$linux|$posix" ;; esac
  mapfile -t left_out < <(printf '%s\n' "${sources[@]}" | grep -E "$missing")
  case "$target" in
    x86_64-*) other='_neon' ;;
    *) other='_avx' ;;
  esac
  mapfile -t sources < <(printf '%s\n' "${sources[@]}" | grep -v -e "$other" -e '^$' | grep -vxF -f <(printf '%s\n' "${left_out[@]}"))
  say "compiling ${#sources[@]} files for $target; left out: ${left_out[*]}"
  printf '%s\n' "${sources[@]}" | xargs -P "$FLOTILLA_JOBS" -I{} bash -c 'compile "$1" "$2"' - "$target" {}
done
