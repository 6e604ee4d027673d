#!/usr/bin/env bash
# quickstart.sh [PRESET]: the main job on real input. Installs what is missing, builds `ordo`, and computes the gradients of one attention layer
# (examples/data/README.md says which): plans, generates and compiles the kernels for sm_90a into a cache file, runs the backward on the
# GPU if there is one and on the CPU otherwise, twice, and compares with fp64. The second time, the kernels come from the cache.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
preset=${1:-release}
build=build/$preset
export ORDO_CACHE=${ORDO_CACHE:-$PWD/$build/quickstart.db}

input=examples/data/attention_layer.safetensors
output=$build/gradients.safetensors
# The layer in that file. `run` reads shapes and dtype from the file; plan and compile have no file.
mask=(--mask causal)
shape=(--batch 1 --seqlen 353 --heads 4 --kv-heads 2 --head-dim 64 --dtype bf16)

bash cmake/bootstrap.sh
[ -f "$build/build.ninja" ] || cmake --preset "$preset"
cmake --build "$build" --target ordo_cli

# Shows what a person would type, and does it.
ordo() {
  printf '\n$ %s\n' "ordo $*"
  "$build/bin/ordo" "$@"
}

ordo plan attention-backward "${shape[@]}" "${mask[@]}"
ordo compile attention-backward "${shape[@]}" "${mask[@]}"
ordo run attention-backward --input "$input" --output "$output" "${mask[@]}"
