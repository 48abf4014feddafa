#!/usr/bin/env bash
# fuzz.sh [--keep] SECONDS TARGET...: runs fuzz targets of build/asan one after another, from what is in fuzz/corpus, and
# prints executions and coverage. Fails at the first finding, which stays in the folder that is named. --keep adds what
# reached new code to fuzz/corpus, as few and small files as cover it.
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.."
source tools/run/common.sh

keep=0
[ "${1:-}" = --keep ] && keep=1 && shift
[ $# -ge 2 ] || fail "fuzz: expected SECONDS TARGET..."
seconds=$1
shift
for name in "$@"; do
  program="build/asan/bin/$name"
  [ -x "$program" ] || fail "fuzz: there is no $program; ./run test --all builds it"
  scratch=$(mktemp -d)
  corpus="fuzz/corpus/$name"
  say "fuzzing with $name for $seconds s"
  mkdir "$scratch/found" "$scratch/tmp"
  if ! TMPDIR="$scratch/tmp" "$program" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=0 \
    -artifact_prefix="$scratch/" "$scratch/found" $([ -d "$corpus" ] && echo "$corpus") 2>"$scratch/log"; then
    tail -40 "$scratch/log" >&2
    fail "$name found a failure: $scratch"
  fi
  runs=$(sed -n 's/^Done \([0-9]*\) runs in \([0-9]*\) second.*/\1 executions in \2 s/p' "$scratch/log")
  coverage=$(grep -o 'cov: [0-9]* ft: [0-9]*' "$scratch/log" | tail -1)
  echo "$name: $runs, $coverage"
  if [ $keep -eq 1 ]; then
    mkdir -p "$corpus" "$scratch/kept"
    "$program" -set_cover_merge=1 "$scratch/kept" "$corpus" "$scratch/found" 2>>"$scratch/log"
    for file in "$scratch"/kept/*; do
      [ "$(stat -c %s "$file")" -le 2048 ] || continue
      # Their names are the SHA-1 of their bytes; seeds have names of their own.
      sha1sum "$corpus"/* | grep -q "^$(basename "$file")" || cp "$file" "$corpus/"
    done
  fi
  rm -rf "$scratch"
done
