#!/usr/bin/env bash
# nightly.sh [SECONDS]: what takes too long for every change. The cache's long tests (ordo_cache_soak: 1,000 kills, 10,000 faults below SQLite,
# 10,000 damaged files, 100,000 kernels, 64 processes), then each fuzz target for SECONDS (300). Needs Clang 19; a finding is left in
# build/fuzz. Exits with 1 if anything was found.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
seconds=${1:-300}
status=0

[ -f build/release/build.ninja ] || cmake --preset release || exit
cmake --build build/release --target ordo_cache_soak || exit
build/release/bin/ordo_cache_soak || status=1

CC=clang-19 CXX=clang++-19 cmake -S . -B build/fuzz -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DORDO_FUZZ=ON -DBUILD_TESTING=ON >/dev/null || exit
cmake --build build/fuzz --target fuzz || exit
for target in cubin shape_list safetensors decision_table expression; do
  mkdir -p "build/fuzz/corpus/$target"
  dictionary=()
  [ -f "tests/fuzz/dictionaries/$target.dict" ] && dictionary=("-dict=tests/fuzz/dictionaries/$target.dict")
  nice "build/fuzz/bin/fuzz_$target" "build/fuzz/corpus/$target" "tests/fuzz/seeds/$target" "${dictionary[@]}" -max_total_time="$seconds" \
    -rss_limit_mb=2048 -timeout=10 -max_len=8192 -print_final_stats=1 -verbosity=0 -artifact_prefix="build/fuzz/$target-" || status=1
done
exit "$status"
