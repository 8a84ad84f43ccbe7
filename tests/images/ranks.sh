#!/bin/sh
# Inside another system: three ranks of examples/01_ddp_hang.py without torchrun, and what frtrace
# makes of what they leave. Slow machines and torch without libuv can do this, the demo not.
#   ranks.sh PYTHON FAULT [OPTIONS of frtrace]     in a directory with examples/
set -u
python=$1 fault=$2
shift 2
export MASTER_ADDR=127.0.0.1 MASTER_PORT=$((20000 + $$ % 10000)) WORLD_SIZE=3 USE_LIBUV=0 OMP_NUM_THREADS=1
export FR_JOB="ranks-$fault" FR_DUMP_DIR="dumps-$fault" FR_VERDICT=0
export FR_WARN_S=10 FR_TIMEOUT_S="${FR_TIMEOUT_S:-20}"
rm -rf "$FR_DUMP_DIR" && mkdir "$FR_DUMP_DIR"
ranks=
for rank in 0 1 2; do
  RANK=$rank LOCAL_RANK=$rank "$python" examples/01_ddp_hang.py --fault "$fault" \
    >"$FR_DUMP_DIR/$rank.log" 2>&1 &
  ranks="$ranks $!"
done
i=0
while [ $i -lt 600 ] && [ "$(find "$FR_DUMP_DIR" -name '*.fr' -o -name '*.ring' | wc -l)" -lt 3 ]; do
  i=$((i + 1))
  sleep 1
done
# shellcheck disable=SC2086
kill -9 $ranks 2>/dev/null
wait
grep -h '^step\|^\[fr ' "$FR_DUMP_DIR"/?.log | head -20
rm "$FR_DUMP_DIR"/?.log
"$(dirname "$python")/frtrace" "$@" "$FR_DUMP_DIR"
echo "exit status: $?"
