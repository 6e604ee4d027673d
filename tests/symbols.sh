#!/usr/bin/env bash
# symbols.sh LIBRARY: fails when the shared library exports anything but ordo's own names, or needs a library it should not.
# Foreign exports (LLVM's, SQLite's, the C++ runtime's) would clash with another copy in the process that loads libordo.
set -euo pipefail
library=$1
failures=0

exported=$(nm --dynamic --defined-only --demangle --format=posix "$library")
foreign=$(grep -vE '^(ordo::|ordo_|(vtable|typeinfo|typeinfo name) for ordo::)' <<<"$exported" || true)
if [ -n "$foreign" ]; then
  echo "$library exports $(wc -l <<<"$foreign") foreign symbols:"
  head -20 <<<"$foreign"
  failures=1
fi
if ! grep -q '^ordo::' <<<"$exported"; then
  echo "$library exports no ordo:: symbol at all"
  failures=1
fi

# ordo.h and the library name the same C functions, all of the ABI's version.
header=$(dirname "${BASH_SOURCE[0]}")/../runtime/include/ordo/ordo.h
version=ORDO_$(sed -n 's/^#define ORDO_ABI_VERSION //p' "$header")
declared=$(grep -oE '^ORDO_C_API [^;(]*\(' "$header" | grep -oE 'ordo_[a-z_]+\($' | tr -d '(' | sort)
defined=$(nm --dynamic --defined-only "$library" | sed -n "s/.* \(ordo_[a-z_]*\)@@$version\$/\1/p" | sort)
if [ -z "$declared" ] || [ "$declared" != "$defined" ]; then
  echo "ordo.h declares (<) and $library exports as $version (>):"
  diff <(echo "$declared") <(echo "$defined") || true
  failures=1
fi

needed=$(readelf --dynamic --wide "$library" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
unexpected=$(grep -vE '^(libc|libm|libdl|librt|libpthread|libstdc\+\+|libgcc_s|ld-linux-x86-64)\.so' <<<"$needed" || true)
if [ -n "$unexpected" ]; then
  echo "$library needs: $(tr '\n' ' ' <<<"$unexpected")"
  failures=1
fi

echo "$((1 - failures)) passed, $failures failed"
exit "$failures"
