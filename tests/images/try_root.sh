#!/usr/bin/env bash
# As root: installs a wheel in the root directory of another system that has no compiler, records
# there, runs the demo if torch is there, and reads its dumps. What it mounts goes with it.
#   tests/images/try_root.sh ROOT PYTHON WHEEL [FRTRACE]     PYTHON: as ROOT has it, with pip
set -euo pipefail
[ "${FR_UNSHARED:-}" ] || FR_UNSHARED=1 exec unshare -m --propagation private "$0" "$@"
root=$1 python=$2 wheel=$3 static=${4:-}
source=$(cd "$(dirname "$0")/../.." && pwd)

mount -t proc proc "$root/proc"
mount -t tmpfs tmpfs "$root/dev/shm"
mount -t tmpfs tmpfs "$root/mnt"
: >>"$root/etc/hosts" && mount --bind /etc/hosts "$root/etc/hosts"  # as containers have it
cp -r "$wheel" "$source/tools/demo.py" "$source/examples" "$source/tests/images/first.py" "$root/mnt"
mkdir "$root/mnt/tools" && mv "$root/mnt/demo.py" "$root/mnt/tools"
[ -z "$static" ] || cp "$static" "$root/mnt/frtrace"

inside() { chroot "$root" env -i HOME=/mnt PATH=/usr/bin:/bin PYTHONDONTWRITEBYTECODE=1 "$@"; }
now() { date +%s.%N; }
said() { printf '%-22s %s\n' "$1" "$2"; }

said compiler "$(inside sh -c 'command -v c++ g++ gcc cc || echo none')"
said libc "$(inside sh -c 'ldd --version 2>&1 | head -1')"
said python "$(inside "$python" -V)"
begin=$(now)
inside "$python" -m pip -q --disable-pip-version-check install --no-index --no-deps \
  --force-reinstall --root-user-action=ignore "/mnt/$(basename "$wheel")"
installed=$(now)
inside sh -c "cd /mnt && $python first.py"
said "pip install" "$(bc <<<"$installed - $begin") s"
said "first operation after" "$(bc <<<"$(now) - $begin") s"
if inside "$python" -c 'import torch' 2>/dev/null; then
  inside sh -c "cd /mnt && $python tools/demo.py skip"
else
  inside sh -c "cd /mnt && RANK=0 WORLD_SIZE=1 FR_DUMP_DIR=fr-dumps $python examples/04_manual_api.py"
  inside sh -c "cd /mnt && $(dirname "$python")/frtrace fr-dumps" || [ $? = 1 ]
fi
if [ -n "$static" ]; then
  inside sh -c 'cd /mnt && ./frtrace --version; ./frtrace fr-dumps/* | head -1'
fi
