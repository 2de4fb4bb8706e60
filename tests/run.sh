#!/bin/bash
# run.sh PART...: runs parts of `make test` one after the other, all of them even if one fails, each bounded in time,
# and after each looks for what it left behind. Prints a table and closes with "N passed, N failed".
set -euo pipefail
# shellcheck source=lib/common.sh
. "$(dirname "$0")/lib/common.sh"

[ $# -gt 0 ] || die "name the parts, e.g. unit guests"
LIMIT=${PART_LIMIT:-1500} # seconds a part may take
LOGS=$BUILD/test
mkdir -p "$LOGS"

child=''
trap '[ -z "$child" ] || kill -TERM "$child" 2>/dev/null; exit 130' INT TERM HUP

passed=0 failed=0 table=''
for part in "$@"; do
  say "==== test-$part"
  before=$LOGS/$part.before log=$LOGS/$part.log
  "$TESTS/lib/leftovers.sh" take "$before"
  begun=$SECONDS verdict=ok
  timeout -k 30 "$LIMIT" make --no-print-directory -C "$REPO" "test-$part" </dev/null > >(tee "$log") 2>&1 &
  child=$!
  if wait "$child"; then status=0; else status=$?; fi
  child=''
  [ "$status" -eq 0 ] || verdict="FAILED, status $status"
  [ "$status" -ne 124 ] || verdict="FAILED, no end after $LIMIT s"
  "$TESTS/lib/leftovers.sh" compare "$before" || verdict="${verdict/ok/FAILED}, left something behind"
  rm -f "$before"
  line=$(printf 'test-%-14s %5d s  %s' "$part" $((SECONDS - begun)) "$verdict")
  if [ "$verdict" = ok ]; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    line+=$'\n'"    repeat with: make test-$part    log: $log"
  fi
  table+=$line$'\n'
done

say
say "$table"
say "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
