#!/bin/bash
# run.sh [PATTERN]: whole daemons with simulated guests. PATTERN is a regular expression of scenario names; all without one.
set -euo pipefail
# shellcheck source=../lib/common.sh
. "$(dirname "$0")/../lib/common.sh"

PATTERN=${1:-}
need_programs butterflyd butterfly
cd "$REPO"
# shellcheck disable=SC2206 # one word or none
cargo=(cargo test -p butterfly-tests ${CI:+--locked})
only=()
if [ -n "$PATTERN" ]; then
  mapfile -t only < <("${cargo[@]}" --quiet -- --list 2>/dev/null | sed -n 's/: test$//p' | grep -E -- "$PATTERN")
  [ ${#only[@]} -gt 0 ] || die "no scenario matches $PATTERN"
  only=(--exact "${only[@]}")
fi

log=$(mktemp /tmp/bfly-scenarios.XXXXXX)
trap 'rm -f "$log"' EXIT
status=0
"${cargo[@]}" --no-fail-fast -- "${only[@]}" </dev/null 2>&1 | tee "$log" || status=$?
sed -n 's/^test \([^ ]*\) .*FAILED$/\1/p' "$log" | while read -r name; do
  say "failed: $name    repeat with: tests/scenarios/run.sh '^$name\$'"
done
exit "$status"
