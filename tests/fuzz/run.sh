#!/usr/bin/env bash
# run.sh <build directory> [loader...] - each target for FUZZ_SECONDS (60); says what it found.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
build="$1"
shift
loaders=("$@")
[ "${#loaders[@]}" -gt 0 ] || loaders=(fr ring pickle json summary net)
status=0
for loader in "${loaders[@]}"; do
  found="$build/found/$loader"
  mkdir -p "$found"
  log="$build/fuzz_$loader.log"
  # Sizes of real dumps are beyond what mutation gains from.
  if "$build/tests/fuzz/fuzz_$loader" -max_total_time="${FUZZ_SECONDS:-60}" -max_len=16384 -timeout=10 \
      -rss_limit_mb=2048 -print_final_stats=1 -artifact_prefix="$build/crash-$loader-" \
      "$found" "$here/corpus/$loader" >"$log" 2>&1; then
    verdict="no crash"
  else
    verdict="FAILED, see $log"
    status=1
  fi
  executions="$(sed -n 's/^stat::number_of_executed_units: //p' "$log")"
  echo "fuzz_$loader: ${executions:-?} executions in ${FUZZ_SECONDS:-60} s, $verdict"
done
exit $status
