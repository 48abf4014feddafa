#!/usr/bin/env bash
# A folder and an archive that run `flotilla work` elsewhere: ./run bundle [x86_64].
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.."
source tools/run/common.sh

arch="${1:-$(uname -m)}"
case "$arch" in
  x86_64) preset=release; root=/ ;;
  *) echo "run bundle: no bundle for '$arch'; expected x86_64" >&2; exit 2 ;;
esac
tools/run/setup.sh binutils xz-utils
build_preset "$preset" flotilla
tools/bundle.py "build/$preset" "$arch" out/bundle --root "$root"
