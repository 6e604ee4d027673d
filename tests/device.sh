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
python=${PYTHON:-python3}
export ORDO=$ordo ORDO_BENCH_OUT=$out ORDO_CACHE=$out/cache.db ORDO_CACHE_LAYERS=${CACHES:-}
if ! nvidia-smi -L >/dev/null 2>&1; then
  echo "skipped: no GPU"
  exit 0
fi

suite() { "$build/bin/ordo_gpu_tests" --duration=true; }

# Kernels of every accumulation, both head dims, one CTA and clusters, ragged and grouped, a mask by expression, a product of one rank.
# Four at a time, each with a log in OUT/sanitizers, of which the failed ones' ends are shown. memcheck and synccheck must have
# nothing to say, and racecheck nothing that sanitizers/racecheck.py does not account for; what that rests on is shown first.
sanitizers() {
  local logs=$out/sanitizers tool number log failures=0
  mkdir -p "$logs"
  rm -f "$logs"/*
  export -f control sanitize
  export here logs ordo python
  "$python" -c 'import sys; sys.path.insert(0, sys.argv[1]); import controls; print("\n".join(f"{k} {int(v)}" for k, v in controls.REPORTED.items()))' \
    "$here/sanitizers" | xargs -P 4 -L 1 bash -c 'control "$@"' _
  for tool in memcheck racecheck synccheck; do
    number=0
    while read -r line; do
      number=$((number + 1))
      echo "$tool $logs/$tool-$number.log $line --repeats 1"
    done <<'CASES'
attention-backward --batch 1 --heads 2 --kv-heads 1 --seqlen-q 300 --seqlen-k 200 --head-dim 128 --mask full
attention-backward --batch 1 --heads 2 --seqlen 300 --head-dim 128 --mask causal
attention-backward --batch 1 --heads 2 --seqlen 600 --head-dim 64 --mask causal
attention-backward --batch 1 --heads 2 --kv-heads 1 --seqlen 300 --head-dim 64 --mask full --schedule shift
attention-backward --batch 1 --heads 2 --seqlen 300 --head-dim 128 --mask causal --accumulate exact
attention-backward --batch 1 --heads 2 --seqlen 300 --head-dim 64 --mask full --accumulate atomic
attention-backward --batch 1 --heads 2 --seqlen 300 --head-dim 64 --mask expr:k<=q&&q-k<100
overlap --ranks 1 --op gemm-reduce-scatter --m 300 --n 264 --k 200 --bias
CASES
  done | xargs -P 4 -L 1 bash -c 'sanitize "$@"' _
  number=$(find "$logs" -name '*.log' | wc -l)
  [ "$number" = 29 ] || { # 5 controls, 3 tools for 8 cases
    echo "$number logs in place of 29"
    failures=1
  }
  for log in "$logs"/*.log; do
    echo "$(basename "$log" .log): $(tail -n 1 "$log")"
    grep -q '^status' "$log" || continue
    failures=$((failures + 1))
    tail -n 25 "$log"
  done
  return "$failures"
}

# control NAME REPORTED: what racecheck says of a control, and whether that is what it must say (1: it reports hazards).
control() {
  local log=$logs/control-$1.log hazards
  compute-sanitizer --tool racecheck "$python" "$here/sanitizers/controls.py" "$1" >"$log" 2>&1
  hazards=$(sed -n 's/.*RACECHECK SUMMARY: \([0-9]*\) hazard.*/\1/p' "$log")
  echo "$1: ${hazards:-no summary} hazards" >>"$log"
  [ -n "$hazards" ] && [ $((hazards > 0)) = "$2" ] || echo "status: must $([ "$2" = 1 ] || echo not) be reported" >>"$log"
}

# sanitize TOOL LOG ARGUMENTS...: ordo check with these arguments.
sanitize() {
  local tool=$1 log=$2
  shift 2
  if [ "$tool" = racecheck ]; then
    compute-sanitizer --tool racecheck --racecheck-report hazard --print-limit 100000 --show-backtrace no "$ordo" check "$@" >"$log.all" 2>&1
    "$python" "$here/sanitizers/racecheck.py" <"$log.all" >"$log" || echo "status $?" >>"$log"
    if ! grep -qE '(^|; )passed$' "$log.all"; then
      grep -v '^=====' "$log.all" >>"$log"
      echo "status: values not passed" >>"$log"
    fi
    grep -q '^status' "$log" || rm "$log.all"
  else
    compute-sanitizer --tool "$tool" --error-exitcode 9 "$ordo" check "$@" >"$log" 2>&1 || echo "status $?" >>"$log"
  fi
}

torch() { ORDO_LIBRARY=$build/lib/libordo.so.0 PYTHONPATH=$root/examples/pytorch "$python" -m unittest discover -s "$root/examples/pytorch/tests"; }
bench() { bash "$here/bench/run.sh" "${ORDO_BENCH_NAME:-device}"; }
overheads() { "$ordo" bench --overheads; }
schedules() { "$ordo" bench --suite --accumulate ordered --plans schedules --no-checks --warmup 0.05 --measure 0.6 --rounds 4 --csv "$out/schedules.csv" --table "$out/schedules-table.csv"; }
roofline() { "$python" "$here/bench/roofline.py" "${ORDO_BENCH_NAME:-device}" --ordo "$ordo" --out "$out"; }
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
