# Shared by the scripts behind ./run.
FLOTILLA_VENV="${FLOTILLA_VENV:-${XDG_CACHE_HOME:-$HOME/.cache}/flotilla/venv}"
FLOTILLA_JOBS="${FLOTILLA_JOBS:-$(nproc)}"
# The libraries of the cross build for aarch64.
export FLOTILLA_SYSROOT="${FLOTILLA_SYSROOT:-${XDG_CACHE_HOME:-$HOME/.cache}/flotilla/sysroot-aarch64}"
# Programs find the real model and the oracles through it.
export FLOTILLA_VENV
# A second clone finds what the first one compiled.
export CCACHE_BASEDIR="$PWD" CCACHE_NOHASHDIR=1

say() { printf '\033[1m%s\033[0m\n' "run: $*" >&2; }
fail() {
  echo "run: $*" >&2
  exit 1
}

# The CMake prefix of libtorch: FLOTILLA_TORCH when given, else the torch package in the virtual environment.
torch_prefix() {
  if [ -n "${FLOTILLA_TORCH:-}" ]; then
    echo "$FLOTILLA_TORCH"
  else
    echo "$FLOTILLA_VENV/lib/$(basename "$(echo "$FLOTILLA_VENV"/lib/python3*)")/site-packages/torch"
  fi
}

# build_preset PRESET [target...]
build_preset() {
  local preset=$1
  shift
  say "building ($preset, $FLOTILLA_JOBS jobs)"
  cmake --preset "$preset" -DFLOTILLA_TORCH="$(torch_prefix)" >"/tmp/flotilla-configure-$$.log" ||
    { cat "/tmp/flotilla-configure-$$.log" >&2; fail "CMake could not configure; the log is above"; }
  rm -f "/tmp/flotilla-configure-$$.log"
  cmake --build "build/$preset" -j "$FLOTILLA_JOBS" ${@:+--target "$@"}
}
