#!/bin/bash
# run.sh PART...: runs parts of `make test` one after the other, all of them even if one fails, each bounded in time,
# and after each looks for what it left behind. Prints a table and closes with "N passed, N failed".
# What a part leaves running is reported and then killed: it carries the part's mark in its environment.
# PART may be A+B+C: B, then C, run beside A, at the lowest priority: they compute (compilers, counted instructions) where A waits.
set -euo pipefail
# shellcheck source=lib/common.sh
. "$(dirname "$0")/lib/common.sh"

[ $# -gt 0 ] || die "name the parts, e.g. unit guests"
LIMIT=${PART_LIMIT:-1500} # seconds a part may take
LOGS=$BUILD/test
mkdir -p "$LOGS"

children=()
trap '[ ${#children[@]} -eq 0 ] || kill -TERM "${children[@]}" 2>/dev/null; exit 130' INT TERM HUP

part() { # part NAME: exit status of a part, bounded in time
  local child
  BUTTERFLY_TEST_PART=$MARK timeout -k 30 "$LIMIT" make --no-print-directory -C "$REPO" "test-$1" </dev/null &
  child=$!
  # shellcheck disable=SC2064 # this child; whoever calls is a shell of its own
  trap "kill -TERM $child 2>/dev/null; exit 143" TERM
  wait "$child"
}
verdict() { # verdict NAME STATUS SECONDS [WHAT]: a line of the table
  local verdict=ok line
  [ "$2" -eq 0 ] || verdict="FAILED, status $2"
  [ "$2" -ne 124 ] || verdict="FAILED, no end after $LIMIT s"
  [ -z "${4:-}" ] || verdict="${verdict/ok/FAILED}, $4"
  line=$(printf 'test-%-14s %5d s  %s' "$1" "$3" "$verdict")
  if [ "$verdict" = ok ]; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    failures+=("$1")
    line+=$'\n'"    repeat with: make test-$1    log: $LOGS/$1.log"
  fi
  table+=$line$'\n'
}
# why NAME: what its log says of the failure: first a failed part's own words, without the backtraces, then its end.
why() {
  local log=$LOGS/$1.log
  printf '\n---- why test-%s failed, from %s\n' "$1" "$log"
  grep -E -A 3 'panicked at|^error|^test .* FAILED$|FAIL|left behind:|^butterfly' "$log" |
    grep -v -E '^ +(at |[0-9]+: )|^--$|stack backtrace:|RUST_BACKTRACE|^test .* ok$' | cut -c -300 | head -n 40 || true
  printf '  [...]\n'
  tail -n 12 "$log" | cut -c -300 || true
}
# beside NAME...: what runs while something else does. A session of its own, because the scheduler shares between sessions first.
beside() {
  local name begun status
  echo 19 >/proc/self/autogroup 2>/dev/null || true
  for name in "$@"; do
    begun=$SECONDS status=0
    part "$name" >"$LOGS/$name.log" 2>&1 || status=$?
    echo "$status $((SECONDS - begun))" >"$LOGS/$name.status"
  done
}
export -f part beside
MARK=$$-$EPOCHREALTIME
export LIMIT LOGS MARK

passed=0 failed=0 table='' failures=()
for together in "$@"; do
  IFS=+ read -ra names <<<"$together"
  first=${names[0]} others=("${names[@]:1}")
  say "==== test-$first${others[*]:+, and beside it: ${others[*]}}"
  for name in "${others[@]}"; do rm -f "$LOGS/$name.status"; done
  before=$LOGS/$first.before
  "$TESTS/lib/leftovers.sh" take "$before"
  begun=$SECONDS
  children=()
  if [ ${#others[@]} -gt 0 ]; then
    setsid nice -n 19 bash -c 'trap "kill -TERM 0" TERM; beside "$@" & wait' beside "${others[@]}" &
    children+=($!)
  fi
  # Printed from the file: whoever kept the writing end of a pipe would keep its reader, and so this script's.
  : >"$LOGS/$first.log"
  part "$first" >"$LOGS/$first.log" 2>&1 &
  children+=($!)
  tail -n +1 -f --pid=$! -s 0.2 "$LOGS/$first.log" &
  printing=$!
  if wait "${children[-1]}"; then status=0; else status=$?; fi
  seconds=$((SECONDS - begun))
  wait "$printing" || true
  if [ ${#others[@]} -gt 0 ]; then
    wait "${children[0]}" || true
    for name in "${others[@]}"; do
      say "---- test-$name, which ran beside test-$first"
      cat "$LOGS/$name.log" || true
    done
  fi
  children=()
  left=''
  "$TESTS/lib/leftovers.sh" compare "$before" || left="left something behind"
  "$TESTS/lib/leftovers.sh" kill "BUTTERFLY_TEST_PART=$MARK"
  rm -f "$before"
  verdict "$first" "$status" "$seconds" "$left"
  for name in "${others[@]}"; do
    read -r status seconds <"$LOGS/$name.status" || { status=1 seconds=0; }
    verdict "$name" "$status" "$seconds"
  done
done

for name in "${failures[@]}"; do why "$name"; done
say
say "$table"
say "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
