#!/usr/bin/env bash
# run.sh NAME [OPTION...]: benchmarks the peers (PyTorch) and ordo in one run and writes results/NAME.csv with the device, driver, date
# and commit, then results/NAME.md and .svg. OPTIONs go to ordo bench --suite, e.g. --plans all or --cells hd128.
#   ORDO              the ordo command; else the newest of build/*/bin and build/*/bundle/bin
#   ORDO_BENCH_OUT    where results go (results/ beside this script)
#   ORDO_BENCH_PEERS  0: no peers; else options for peers.py, e.g. --deterministic
#   ORDO_COMMIT       the commit, where there is no git
#   ORDO_BENCH_OTHER  options for table.py, e.g. "--other fa3.csv --other-cublas 690"
#   PYTHON            a Python with PyTorch (python3)
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
if [ $# -lt 1 ] || [[ $1 == -* ]]; then
  sed -n '2,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
  exit 2
fi
name=$1
shift
python=${PYTHON:-python3}
out=${ORDO_BENCH_OUT:-$here/results}
ordo=$(bash "$here/find_ordo.sh" run.sh) || exit
if ! nvidia-smi -L >/dev/null 2>&1; then
  echo "skipped: no GPU"
  exit 0
fi

echo "run.sh: $ordo" >&2
mkdir -p "$out"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
commit=${ORDO_COMMIT:-$(git -C "$root" describe --always --dirty 2>/dev/null || echo unknown)}
status=0
touch "$work/peers.csv"
if [ "${ORDO_BENCH_PEERS:-}" != 0 ]; then
  # Word splitting is wanted: options.
  # shellcheck disable=SC2086
  timeout 500 "$python" "$here/peers.py" --csv "$work/peers.csv" ${ORDO_BENCH_PEERS:-} || status=$?
fi
timeout 900 "$ordo" bench --suite --cache "$work/kernels.db" --csv "$work/ordo.csv" "$@" || status=$?

{
  echo "# device: $(nvidia-smi --query-gpu=name,driver_version,power.limit --format=csv,noheader | head -1)"
  echo "# date: $(date -u +%Y-%m-%dT%H:%MZ)"
  echo "# commit: $commit"
  echo "# command: bash tests/bench/run.sh $name $*"
  grep -h '^#' "$work"/*.csv || true
  grep -hm1 '^impl,' "$work/ordo.csv" || true
  grep -hv -e '^#' -e '^impl,' "$work"/*.csv || true
} >"$out/$name.csv"
# shellcheck disable=SC2086
"$python" "$here/table.py" "$out/$name.csv" ${ORDO_BENCH_OTHER:-} || status=$?
exit "$status"
