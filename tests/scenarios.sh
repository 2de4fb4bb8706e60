#!/bin/bash
# scenarios.sh: whole daemons with simulated guests: every test program of this directory, all of them even if one fails. The daemons are built
# like the tests, with their checks, unless BIN names others. With WORKERS=N in the environment each daemon has N workers, unless its scenario
# says otherwise. Without it those of files that are about the data path have two, and all others have one.
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
# What waits for a minute of real time and uses none of it runs beside the rest.
WAITING=(poison::a_vnic_is_released_by_itself layouts::a_commit_is_whole_or_not_at_all
  way_back::a_program_that_fails_gives_the_process_back clients::leases_are_renewed_in_time)
# What no child of another test may inherit from.
ALONE=(holder::who_gives_descriptors_waits_until_they_are_closed)
# Files whose scenarios move frames.
DATA_PATH=(accounting behaviour clients containers crashes drops external filtering hostile lasting limits mirror offloads packed pings poison queues rings routing security_groups sleeping
  switching tap tunnel_lasting upgrade uplink)
for file in "${DATA_PATH[@]}"; do
  [ -e "$TESTS/scenarios/$file.rs" ] || [ -d "$TESTS/scenarios/$file" ] || die "tests/scenarios has no $file"
done
apart() { # apart LOG TEST...: in a process of their own
  local home program log=$LOGS/$1.log
  shift
  read -r _ home program < <(grep '/scenarios-[^/]*$' "$LOGS/programs")
  test_in "$home" "$program" --exact --test-threads $# "$@" >"$log" 2>&1 </dev/null && grep -q "^test result: ok. $# passed" "$log"
}
waiting() {
  local status=0
  apart waiting "${WAITING[@]}" || status=1
  apart alone "${ALONE[@]}" || status=1
  return "$status"
}
beside=''
trap '[ -z "$beside" ] || kill "$beside" 2>/dev/null || true' EXIT
trap 'exit 130' INT TERM HUP
waiting &
beside=$!
several() { # several HOME PROGRAM OPTION...: those of DATA_PATH with two workers, then the others with one
  local home=$1 program=$2 status=0 names=() name
  shift 2
  mapfile -t names < <(test_names "$program")
  [ ${#names[@]} -gt 0 ] || return 1
  local two=() one=()
  for name in "${names[@]}"; do
    if [[ " ${DATA_PATH[*]} " = *" ${name%%::*} "* ]]; then two+=("$name"); else one+=("$name"); fi
  done
  say "with two workers each: ${#two[@]} scenarios of ${DATA_PATH[*]}"
  WORKERS=2 test_in "$home" "$program" "$@" "${two[@]}" </dev/null || status=1
  say "with one worker each: ${#one[@]} scenarios"
  WORKERS=1 test_in "$home" "$program" "$@" "${one[@]}" </dev/null || status=1
  return "$status"
}
test_names() { "$1" --list --format terse | sed -n 's/: test$//p'; }
ran=0 failed=0
while read -r _ home program; do
  [ "$home" = "$TESTS" ] || continue
  [[ ${program##*/} != metrics-* ]] || continue # a part of its own
  ran=$((ran + 1))
  skipped=() run=test_in
  if [[ ${program##*/} = scenarios-* ]]; then
    # They wait for most of their time.
    skipped=(--exact --test-threads 4)
    for name in "${WAITING[@]}" "${ALONE[@]}"; do skipped+=(--skip "$name"); done
    [ -n "${WORKERS:-}" ] || run=several
  fi
  "$run" "$home" "$program" "${skipped[@]}" </dev/null || {
    failed=1
    say "failed: repeat with: WORKERS=${WORKERS:-2} cargo test -p butterfly-tests (or WORKERS=1, see above)"
  }
done <"$LOGS/programs"
wait "$beside" || {
  failed=1
  say "failed: repeat with: cargo test -p butterfly-tests --test scenarios"
}
beside=''
cat "$LOGS/waiting.log" "$LOGS/alone.log"
[ "$ran" -gt 0 ] || die "cargo built no test of butterfly-tests"
[ "$failed" -eq 0 ]
