#!/bin/bash
# scenarios.sh: whole daemons with simulated guests: every test program of this directory, all of them even if one fails. The daemons are built
# like the tests, with their checks, unless BIN names others.
set -euo pipefail
given=${BIN:-}
# shellcheck source=lib/common.sh
. "$(dirname "$0")/lib/common.sh"
# shellcheck source=lib/programs.sh
. "$TESTS/lib/programs.sh"

[ -n "$given" ] || unset BIN
cd "$REPO"
LOGS=$BUILD/test/scenarios
mkdir -p "$LOGS"
build_tests "$LOGS/programs"
ran=0 failed=0
while read -r _ home program; do
  [ "$home" = "$TESTS" ] || continue
  [[ ${program##*/} != metrics-* ]] || continue # a part of its own
  ran=$((ran + 1))
  test_in "$home" "$program" </dev/null || {
    failed=1
    say "failed: repeat with: cargo test -p butterfly-tests"
  }
done <"$LOGS/programs"
[ "$ran" -gt 0 ] || die "cargo built no test of butterfly-tests"
[ "$failed" -eq 0 ]
