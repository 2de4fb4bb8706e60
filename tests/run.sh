#!/bin/bash
# run.sh PART...: runs parts of `make test` one after the other, all of them even if one fails, each bounded in time,
# and after each looks for what it left behind. Prints a table and closes with "N passed, N failed".
# One or two cases that fail are run once more, alone: on a machine shared with others, time is not ours. What passes then is
# named as unsteady in the table, and is to be looked into; what fails twice has failed.
set -euo pipefail
# shellcheck source=lib/common.sh
. "$(dirname "$0")/lib/common.sh"

[ $# -gt 0 ] || die "name the parts, e.g. unit guests"
LIMIT=${PART_LIMIT:-1500} # seconds a part may take
LOGS=$BUILD/test
mkdir -p "$LOGS"

# again PART LOG: runs the few cases that failed once more. Fails if there were many, none that can be run alone, or one fails again.
UNSTEADY=2
again() {
  local script names name
  case $1 in
    guests) script=tests/guest/run.sh ;;
    scenarios | tunnel | dpdk) script=tests/$1/run.sh ;;
    *) return 1 ;;
  esac
  sleep 1 # the log's writer may be behind
  mapfile -t names < <(sed -nE 's/^failed: ([A-Za-z0-9_:.-]+)    repeat with: .*/\1/p' "$2")
  [ ${#names[@]} -gt 0 ] && [ ${#names[@]} -le "$UNSTEADY" ] || return 1
  for name in "${names[@]}"; do
    say "==== once more: $name"
    # Beside the logs of the first time, which say why.
    CASE_LOGS=$LOGS/again timeout -k 30 300 "$REPO/$script" "^$name\$" </dev/null 2>&1 | tee -a "$2" || return 1
  done
  unsteady="unsteady, passed when run again: ${names[*]}"
}

child=''
trap '[ -z "$child" ] || kill -TERM "$child" 2>/dev/null; exit 130' INT TERM HUP

passed=0 failed=0 table=''
for part in "$@"; do
  say "==== test-$part"
  before=$LOGS/$part.before log=$LOGS/$part.log
  "$TESTS/lib/leftovers.sh" take "$before"
  begun=$SECONDS verdict=ok unsteady=''
  timeout -k 30 "$LIMIT" make --no-print-directory -C "$REPO" "test-$part" </dev/null > >(tee "$log") 2>&1 &
  child=$!
  if wait "$child"; then status=0; else status=$?; fi
  child=''
  [ "$status" -eq 0 ] || verdict="FAILED, status $status"
  if [ "$status" -eq 124 ]; then
    verdict="FAILED, no end after $LIMIT s"
  elif [ "$status" -ne 0 ] && again "$part" "$log"; then
    verdict=ok
  fi
  "$TESTS/lib/leftovers.sh" compare "$before" || verdict="${verdict/ok/FAILED}, left something behind"
  rm -f "$before"
  line=$(printf 'test-%-14s %5d s  %s' "$part" $((SECONDS - begun)) "$verdict")
  if [ "$verdict" = ok ]; then
    passed=$((passed + 1))
    [ -z "$unsteady" ] || line+=$'\n'"    $unsteady"
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
