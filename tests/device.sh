#!/usr/bin/env bash
# device.sh OUT [SECTION...]: what a machine with a GPU must show, each section's output in OUT/SECTION.log. Sections:
#   suite       ordo_gpu_tests: values, bits, graphs, disturbance, errors, threads and engines
#   sanitizers  compute-sanitizer (memcheck, racecheck, synccheck) over a small matrix of kernels
#   torch       the tests of examples/pytorch
#   bench       tests/bench/run.sh: the 24 cells beside PyTorch's peers, in one run
#   overheads   host time of launches and of cache hits
#   schedules   every schedule in every cell
#   roofline    what bounds the kernels, by ncu
#   peers       ranks on two GPUs: transports, overlapped products, faults
# All but the last unless named. BUILD: a folder with bin/ and lib/ (build/release); CACHES: finished cache files, so that less is
# compiled here. Ends with "N passed, N failed", counting sections.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/.." && pwd)
if [ $# -lt 1 ]; then
  sed -n '2,13s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
  exit 2
fi
out=$(mkdir -p "$1" && cd "$1" && pwd)
shift
sections=("$@")
[ ${#sections[@]} -gt 0 ] || sections=(suite sanitizers torch bench overheads schedules roofline)
build=$(cd "${BUILD:-$root/build/release}" && pwd) || exit 2
ordo=$build/bin/ordo
export ORDO=$ordo ORDO_BENCH_OUT=$out ORDO_CACHE=$out/cache.db ORDO_CACHE_LAYERS=${CACHES:-}
if ! nvidia-smi -L >/dev/null 2>&1; then
  echo "skipped: no GPU"
  exit 0
fi

suite() { "$build/bin/ordo_gpu_tests" --duration=true; }

# Kernels of every accumulation, both head dims, one CTA and clusters, ragged and grouped, a mask by expression. Four at a time, each
# with a log in OUT/sanitizers, of which the failed ones' first reports are shown.
sanitizers() {
  local logs=$out/sanitizers tool number log failures=0
  mkdir -p "$logs"
  # shellcheck disable=SC2016 # they expand in the inner shell
  for tool in memcheck racecheck synccheck; do
    number=0
    while read -r line; do
      number=$((number + 1))
      echo "$tool $logs/$tool-$number.log --batch 1 --heads 2 --repeats 1 $line"
    done <<'CASES'
--kv-heads 1 --seqlen-q 300 --seqlen-k 200 --head-dim 128 --mask full
--kv-heads 2 --seqlen 300 --head-dim 128 --mask causal
--kv-heads 2 --seqlen 600 --head-dim 64 --mask causal
--kv-heads 1 --seqlen 300 --head-dim 64 --mask full --schedule shift
--kv-heads 2 --seqlen 300 --head-dim 128 --mask causal --accumulate exact
--kv-heads 2 --seqlen 300 --head-dim 64 --mask full --accumulate atomic
--kv-heads 2 --seqlen 300 --head-dim 64 --mask expr:k<=q&&q-k<100
CASES
  done | xargs -P 4 -L 1 bash -c 'compute-sanitizer --tool "$1" --error-exitcode 9 "$0" check attention-backward "${@:3}" >"$2" 2>&1 || echo "status $?" >>"$2"' "$ordo"
  for log in "$logs"/*.log; do
    grep -q '^status' "$log" || continue
    failures=$((failures + 1))
    echo "== $log"
    grep -m 25 -E '^=+|^status' "$log"
  done
  return "$failures"
}

torch() { ORDO_LIBRARY=$build/lib/libordo.so.0 PYTHONPATH=$root/examples/pytorch "${PYTHON:-python3}" -m unittest discover -s "$root/examples/pytorch/tests"; }
bench() { bash "$here/bench/run.sh" "${ORDO_BENCH_NAME:-device}"; }
overheads() { "$ordo" bench --overheads; }
schedules() { "$ordo" bench --suite --accumulate ordered --plans schedules --no-checks --csv "$out/schedules.csv" --table "$out/schedules-table.csv"; }
roofline() { "${PYTHON:-python3}" "$here/bench/roofline.py" "${ORDO_BENCH_NAME:-device}"; }
peers() { "$build/bin/ordo_peer_tests" --duration=true; }

failed=0
for section in "${sections[@]}"; do
  start=$SECONDS
  if "$section" >"$out/$section.log" 2>&1; then verdict=passed; else
    verdict="FAILED ($?)"
    failed=$((failed + 1))
  fi
  echo "$section: $verdict after $((SECONDS - start)) s"
  [ "$verdict" = passed ] || tail -n 15 "$out/$section.log"
done
echo "$((${#sections[@]} - failed)) passed, $failed failed"
[ "$failed" = 0 ]
