#!/usr/bin/env bash
# overlap.sh NAME [OPTION...]: on two GPUs, checks overlapped products and then times them beside NCCL with cuBLAS and PyTorch, in one
# run of about five minutes. Writes NAME-overlap.csv with the device, driver, date and commit. OPTIONs go to ordo bench overlap.
#   ORDO               the ordo command; else the newest of build/*/bin and build/*/bundle/bin
#   ORDO_BENCH_OUT     where results go (results/ beside this script)
#   ORDO_OVERLAP_STEPS which steps, in order ("tests check bench peers")
#   ORDO_COMMIT        the commit, where there is no git
#   PYTHON             a Python with PyTorch (python3)
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
if [ $# -lt 1 ] || [[ $1 == -* ]]; then
  sed -n '2,8s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
  exit 2
fi
name=$1
shift
python=${PYTHON:-python3}
out=${ORDO_BENCH_OUT:-$here/results}
ordo=$(bash "$here/find_ordo.sh" overlap.sh) || exit
if [ "$(nvidia-smi -L 2>/dev/null | grep -c '^GPU')" -lt 2 ]; then
  echo "skipped: this needs two GPUs"
  exit 0
fi

mkdir -p "$out"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
ORDO_COMMIT=${ORDO_COMMIT:-$(git -C "$root" describe --always --dirty 2>/dev/null || echo unknown)}
export ORDO_COMMIT ORDO_CACHE="$work/kernels.db"
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 # NVLink multicast stays off
# PyTorch's wheels bring NCCL and cuBLAS where the system has none.
libraries=$("$python" -c 'import nvidia, os; print(":".join(os.path.join(p, d, "lib") for p in nvidia.__path__ for d in os.listdir(p)))' 2>/dev/null || true)
export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$libraries"
status=0

# step NAME SECONDS COMMAND...
step() {
  local what=$1 limit=$2 start=$SECONDS code=0
  shift 2
  timeout -k 5 "$limit" "$@" || code=$?
  echo "overlap.sh: $what: $([ $code = 0 ] && echo ok || echo "FAILED ($code)") after $((SECONDS - start)) s" >&2
  [ $code = 0 ] || status=1
}

for todo in ${ORDO_OVERLAP_STEPS:-tests check bench peers}; do
  case $todo in
    tests) # ranks as threads and processes, graphs, faults, transports
      step tests 240 "$(dirname "$ordo")/ordo_peer_tests" -d
      ;;
    check) # every op and ragged shapes as threads of one process; then many repeats as processes
      step check 120 "$ordo" check overlap --suite --ranks 2 --repeats 10 --delays
      for op in all-gather-gemm gemm-reduce-scatter; do
        step "check $op" 60 "$ordo" launch -n 2 -- "$ordo" check overlap --op "$op" --m 8192 --n 4096 --k 4096 --repeats 100 --delays
      done
      ;;
    bench)
      step bench 240 "$ordo" launch -n 2 -- "$ordo" bench overlap --suite --csv "$work/ordo.csv" "$@"
      ;;
    peers)
      step peers 180 "$python" -m torch.distributed.run --nproc-per-node 2 "$here/overlap_peers.py" --csv "$work/peers.csv"
      ;;
  esac
done

shopt -s nullglob
csvs=("$work"/*.csv)
if [ ${#csvs[@]} -gt 0 ]; then
  {
    echo "# device: $(nvidia-smi --query-gpu=name,driver_version,power.limit --format=csv,noheader | paste -sd';')"
    echo "# date: $(date -u +%Y-%m-%dT%H:%MZ)"
    echo "# commit: $ORDO_COMMIT"
    echo "# command: bash tests/bench/overlap.sh $name $*"
    grep -h '^#' "${csvs[@]}"
    grep -hm1 '^impl,' "${csvs[0]}"
    grep -hv -e '^#' -e '^impl,' "${csvs[@]}"
  } >"$out/$name-overlap.csv"
  "$python" "$here/overlap_table.py" "$out/$name-overlap.csv" || status=1
fi
exit "$status"
