#!/usr/bin/env bash
# package.sh BUILD_FOLDER: installs that build into a clean prefix, moves the prefix, and builds the examples against it there:
# by find_package, and by pkg-config with nothing but a C compiler. Then the .deb, unpacked.
set -euo pipefail
build=$(realpath "$1")
source=$(realpath "$(dirname "${BASH_SOURCE[0]}")/..")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cmake --install "$build" --prefix "$work/installed" >/dev/null
mv "$work/installed" "$work/moved"
library=$(dirname "$(find "$work/moved" -name libordo.so -print -quit)")
export ORDO_CACHE=$work/cache.db LD_LIBRARY_PATH=$library

cp -r "$source/examples" "$work/examples"  # nothing of the source tree is within reach
cmake -S "$work/examples" -B "$work/build" -DCMAKE_PREFIX_PATH="$work/moved" >/dev/null
cmake --build "$work/build" >/dev/null
"$work/build/example_backward_c"
"$work/build/example_backward_cpp"

PKG_CONFIG_PATH=$library/pkgconfig
export PKG_CONFIG_PATH
flags=$(pkg-config --cflags --libs ordo)
# shellcheck disable=SC2086 # several flags
cc -Wall -Wextra -Werror "$source/examples/backward_c.c" $flags -ldl -o "$work/c"
"$work/c" >/dev/null
ORDO_NVRTC=$work/none "$work/c" >/dev/null  # what the cache holds needs no compiler

# A program may hold other copies of what ordo is made of, and earlier in the search order: of LLVM, fmt, SQLite, zstd.
others=$(ldconfig -p | grep -oE '/[^ ]*/lib(LLVM[^ ]*|fmt|sqlite3|zstd)\.so[^ ]*$' | tr '\n' ' ')
LD_PRELOAD=$others "$work/c" >/dev/null
LD_PRELOAD=$others "$work/moved/bin/ordo" check attention-backward --device cpu --seqlen 200 --heads 2 --head-dim 64 --mask 'expr:k <= q && q - k < 64'
"$work/moved/bin/ordo" --version

(cd "$build" && cpack -G DEB -B "$work/deb" >/dev/null)
dpkg-deb --extract "$work"/deb/*.deb "$work/unpacked"
LD_LIBRARY_PATH=$(dirname "$(find "$work/unpacked" -name libordo.so.0 -print -quit)") "$work/unpacked/usr/bin/ordo" --version
echo "1 passed, 0 failed"
