#!/usr/bin/env bash
# run.sh [PRESET]: a release engineer's day, on a machine without a GPU. Builds `ordo`, compiles all kernels that two models need into one
# file, checks it, ships it read-only, and runs a layer with it where neither a compiler nor a writable cache is at hand. LISTS and JOBS in
# the environment name other lists and how many compiles run at once.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
preset=${1:-release}
build=build/$preset
read -ra lists <<<"${LISTS:-models/gpt2-xl.toml models/vit-large-16.toml}"
jobs=${JOBS:-$(nproc)}

bash cmake/bootstrap.sh
[ -f "$build/build.ninja" ] || cmake --preset "$preset"
cmake --build "$build" --target ordo_cli

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
kernels=$work/kernels.db

# Shows what a person would type, and does it.
ordo() {
  printf '\n$ %s\n' "ordo $*"
  "$build/bin/ordo" "$@"
}

# On the build machine. Broken off, the same command goes on where it was.
ordo precompile "${lists[@]}" --target h200,h100 --cache "$kernels" --jobs "$jobs"
ordo precompile "${lists[@]}" --target h200,h100 --cache "$kernels" --check # for CI: is the file complete for these lists and this NVRTC?
ordo cache verify --cache "$kernels"
ordo cache stats --cache "$kernels"

# On the machines that run: the file lies read-only on a shared filesystem, and each process would write what it lacks to a file of its own.
# Here it lacks nothing, so nothing is written and NVRTC is not needed.
mkdir "$work/shared"
mv "$kernels" "$work/shared/kernels.db"
chmod -R a-w "$work/shared"
export ORDO_CACHE_LAYERS=$work/shared/kernels.db ORDO_CACHE=$work/own/cache.db ORDO_NVRTC=$work/none
ordo compile attention-backward --batch 32 --seqlen 577 --heads 16 --head-dim 64 --target h200
[ ! -e "$work/own" ]
unset ORDO_NVRTC
ordo run attention-backward --input examples/data/attention_layer.safetensors --output "$work/gradients.safetensors" --mask causal --device cpu
chmod -R u+w "$work/shared"
