#!/usr/bin/env bash
# Makes a folder with the libraries that the cross build for aarch64 links and that qemu runs it with. Debian's packages of
# that architecture are unpacked there, not installed: some of them cannot be installed beside this machine's own.
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.."
source tools/run/common.sh

tools/run/setup.sh g++-aarch64-linux-gnu

mapfile -t packages < <(grep -v '^#' tools/packages.txt | awk '$1 ~ /-dev$/ && $1 !~ /^python/ {print $1}')
stamp="$FLOTILLA_SYSROOT/.flotilla-$(echo "${packages[@]}" | sha256sum | cut -c1-16)"
[ -e "$stamp" ] && exit 0
say "fetching the libraries for aarch64 into $FLOTILLA_SYSROOT (about 90 MB)"
[ "$(. /etc/os-release && echo "$ID")" = debian ] ||
  fail "the libraries for aarch64 are Debian's; this system is another. Unpack those that tools/packages.txt names (*-dev) and \
what they depend on into a folder, set FLOTILLA_SYSROOT to it, and create $stamp"

# apt with a state of its own, in which nothing is installed: it then fetches all that the packages depend on.
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir -p "$scratch"/{lists,archives}/partial
: >"$scratch/status"
apt() {
  apt-get -q -o APT::Architecture=arm64 -o APT::Architectures::=arm64 -o APT::Sandbox::User="$(id -un)" \
    -o Dir::State="$scratch" -o Dir::State::status="$scratch/status" -o Dir::Cache="$scratch" "$@" >"$scratch/log" 2>&1 ||
    { cat "$scratch/log" >&2; fail "apt-get could not fetch the libraries for aarch64; its words are above"; }
}
apt update
# A folder that this script did not make is not its to delete.
[ ! -e "$FLOTILLA_SYSROOT" ] || [ -z "$(ls -A "$FLOTILLA_SYSROOT")" ] || compgen -G "$FLOTILLA_SYSROOT/.flotilla-*" >/dev/null ||
  fail "$FLOTILLA_SYSROOT (FLOTILLA_SYSROOT) is not empty and was not made here; name another folder"
apt install --download-only -y --no-install-recommends libstdc++-12-dev "${packages[@]}"
rm -rf "$FLOTILLA_SYSROOT"
mkdir -p "$FLOTILLA_SYSROOT"
for archive in "$scratch"/archives/*.deb; do dpkg-deb -x "$archive" "$FLOTILLA_SYSROOT"; done
touch "$stamp"
