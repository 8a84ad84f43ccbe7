#!/usr/bin/env bash
# run.sh <benchmark>... - all benchmarks, one after the other; the Python ones with the `python3`
# of the PATH, where fr is installed.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
for benchmark in "$@"; do
  "$benchmark"
done
if ! python3 -c 'import fr' 2>/dev/null; then
  echo "python benchmarks: left out, no fr package in $(command -v python3)"
  exit 0
fi
python3 "$here/python_call.py"
for script in "$here"/../python/bench_*.py; do
  echo
  python3 "$script"
done
