#!/usr/bin/env bash
# Installs the Debian or Ubuntu packages that are missing (as root or through sudo); prints and
# does nothing when all are there. Usage: tools/setup.sh PYTHON [more packages]
set -euo pipefail
python=${1:-python3}
shift || true

command -v "$python" >/dev/null || [ "$python" = python3 ] || {
  echo "setup: no such interpreter: $python" >&2
  exit 1
}

# One line per need; a|b: the first that this release has.
needs=(g++ cmake ninja-build make git "libmsgpack-cxx-dev|libmsgpack-dev" libzstd-dev libfmt-dev
  libcli11-dev nlohmann-json3-dev libdw-dev catch2 libbenchmark-dev "$@")

has() { [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }
runs() { command -v "$1" >/dev/null; }

missing=()
if runs dpkg-query; then
  for need in "${needs[@]}"; do
    IFS='|' read -ra either <<<"$need"
    for package in "${either[@]}"; do has "$package" && continue 2; done
    missing+=("$need")
  done
fi

# Python may be Debian's own or not; ask it, not dpkg.
if ! runs "$python"; then
  missing+=(python3 python3-venv python3-dev)
else
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || {
    echo "setup: $python is older than Python 3.10; name another one: make PYTHON=python3.11 ..." >&2
    exit 1
  }
  v=$("$python" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
  "$python" -c 'import venv, ensurepip' 2>/dev/null || missing+=("$v-venv")
  "$python" -c 'import os, sysconfig as s; os.stat(s.get_path("include") + "/Python.h")' \
    2>/dev/null || missing+=("$v-dev")
fi

[ ${#missing[@]} -gt 0 ] || exit 0

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  if runs sudo; then as_root=(sudo); else as_root=(none); fi
fi
if ! runs apt-get || [ "${as_root[*]:-}" = none ]; then
  echo "setup: missing: ${missing[*]}" >&2
  for tool in g++ cmake ninja git "$python"; do
    runs "$tool" || {
      echo "setup: install these with your package manager (no apt-get, or neither root nor sudo)" >&2
      exit 1
    }
  done
  echo "setup: going on without; CMake fetches the libraries it does not find" >&2
  exit 0
fi

echo "setup: installing ${missing[*]}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
apt() { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -y "$@" >>"$log" 2>&1; }
apt update || { tail -20 "$log" >&2; echo "setup: apt-get update failed; trying with the old lists" >&2; }
install=()
for need in "${missing[@]}"; do
  IFS='|' read -ra either <<<"$need"
  for package in "${either[@]}"; do
    if apt-cache show "$package" >/dev/null 2>&1; then
      install+=("$package")
      continue 2
    fi
  done
  echo "setup: no package ${need} here; CMake will look for it or fetch it" >&2
done
[ ${#install[@]} -eq 0 ] || apt install --no-install-recommends "${install[@]}" || {
  tail -30 "$log" >&2
  echo "setup: apt-get install failed: ${install[*]}" >&2
  exit 1
}
