#!/usr/bin/env bash
# find_ordo.sh CALLER: prints the ordo command to benchmark: $ORDO, else the newest of build/*/bin and build/*/bundle/bin. Where there
# is none it says so in CALLER's name and ends with 3.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
ordo=${ORDO:-}
if [ -z "$ordo" ]; then
  for candidate in "$root"/build/*/bin/ordo "$root"/build/*/bundle/bin/ordo; do
    if [ -x "$candidate" ] && { [ -z "$ordo" ] || [ "$candidate" -nt "$ordo" ]; }; then ordo=$candidate; fi
  done
fi
if [ -z "$ordo" ]; then
  echo "$1: no ordo command; build it first: cmake --preset release && cmake --build --preset release" >&2
  exit 3
fi
echo "$ordo"
