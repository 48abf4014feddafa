#!/usr/bin/env bash
# A folder and an archive that run `flotilla work` elsewhere: ./run bundle [x86_64|aarch64].
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.."
source tools/run/common.sh

arch="${1:-$(uname -m)}"
case "$arch" in
  "$(uname -m)") preset=release root=/ ;;
  aarch64) preset=aarch64 root="$FLOTILLA_SYSROOT" ;;
  *) echo "run bundle: no bundle for '$arch' can be made here; expected $(uname -m) or aarch64" >&2; exit 2 ;;
esac
tools/run/setup.sh binutils xz-utils
[ "$preset" = release ] || tools/run/sysroot_aarch64.sh
build_preset "$preset" flotilla
tools/bundle.py "build/$preset" "$arch" out/bundle --root "$root"
