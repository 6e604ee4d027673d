#!/usr/bin/env bash
# run.sh [PRESET]: installs what is missing, builds, and runs every test that needs no GPU (those that need one too, if there is one).
# Ends with "N passed, N failed".
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
preset=${1:-release}
build=build/$preset

bash cmake/bootstrap.sh
[ -f "$build/build.ninja" ] || cmake --preset "$preset"
cmake --build "$build"

select=()
skipped=
if [ ! -e /dev/nvidiactl ] && [ ! -e /dev/dxg ]; then
  select=(--label-exclude gpu)
  count=$("$build/bin/ordo_gpu_tests" --count | sed -n 's/.*: //p')
  skipped="skipped for lack of a GPU: ordo_gpu_tests ($count test cases)"
fi

status=0
ctest --test-dir "$build" --parallel 2 --output-on-failure --no-tests=error "${select[@]}" || status=$?
[ -z "$skipped" ] || echo "$skipped"
bash tests/count.sh "$status" "$build/Testing/Temporary/LastTest.log"
exit "$status"
