#!/usr/bin/env bash
# count.sh STATUS LOG...: adds up doctest's summaries and plain "N passed, N failed" lines in the logs, and prints the sum as such a
# line. A run that failed without counting a failure (a crash, say) counts as one.
set -euo pipefail
status=$1
shift
awk -v status="$status" '
  /^\[doctest\] test cases:/ { gsub(/[|]/, " "); passed += $5; failed += $7 }
  /^[0-9]+ passed, [0-9]+ failed$/ { passed += $1; failed += $3 }
  END { if (status != 0 && failed == 0) failed = 1; printf "%d passed, %d failed\n", passed, failed }' "$@"
