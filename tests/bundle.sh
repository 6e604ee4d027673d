#!/usr/bin/env bash
# bundle.sh FOLDER: checks that a bundle is small and stripped, needs glibc alone, and runs from another place.
set -euo pipefail
limit_mib=60
moved=$(mktemp -d)
trap 'rm -rf "$moved"' EXIT
cp -r "$1/." "$moved"
failures=0

size_mib=$(du --apparent-size -sm "$moved" | cut -f1)
if [ "$size_mib" -gt "$limit_mib" ]; then
  echo "the bundle is $size_mib MiB, more than $limit_mib"
  failures=$((failures + 1))
fi

for file in "$moved"/bin/* "$moved"/lib/libordo.so.0; do
  if readelf --sections --wide "$file" | grep -q '\.symtab'; then
    echo "${file#"$moved"/} is not stripped"
    failures=$((failures + 1))
  fi
  needed=$(readelf --dynamic --wide "$file" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
  foreign=$(grep -vE '^(libordo|libc|libm|libdl|librt|libpthread|ld-linux-x86-64)\.so' <<<"$needed" || true)
  if [ -n "$foreign" ]; then
    echo "${file#"$moved"/} needs ${foreign//$'\n'/ }"
    failures=$((failures + 1))
  fi
done

for run in "ordo --help" "ordo_gpu_tests --count"; do
  # Word splitting is wanted: program and argument.
  # shellcheck disable=SC2086
  if ! "$moved"/bin/$run >"$moved/output" 2>&1; then
    echo "$run fails from another place:"
    cat "$moved/output"
    failures=$((failures + 1))
  fi
done

[ "$failures" = 0 ] && echo "bundle: $size_mib MiB, runs anywhere with this machine's glibc or a newer one"
exit "$((failures > 0))"
