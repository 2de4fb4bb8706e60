#!/bin/bash
# long.sh [PART...]: what takes too long for `make test`. Each part runs for MINUTES (60), one after the other, all of them
# even if one fails; prints a table and closes with "N passed, N failed, N skipped". Needs root.
#   advisories  vulnerabilities that became known in dependencies; skipped if their list cannot be fetched
#   ignored     tests that are marked "long": as long as they take
#   workers     all scenarios with one worker in each daemon, then with four; hostile guests under four
#   tunnel      networks across hosts in all 28 combinations: as long as they take
#   model       the switch against its model, on one host and on two, each for MINUTES
#   crash       deaths at kill points under load, ten times each, and 10,000 of a host in one process
#   attack      hostile guests, front ends and clients beside guests that must not notice
#   fuzz        coverage-guided fuzzing, MINUTES shared by all targets
#   soak        traffic, additions and removals; two hosts with deaths and upgrades
set -euo pipefail
# shellcheck source=lib/common.sh
. "$(dirname "$0")/lib/common.sh"

MINUTES=${MINUTES:-60}
LOGS=$BUILD/test-long
mkdir -p "$LOGS"
parts=("$@")
[ $# -gt 0 ] || parts=(advisories ignored workers tunnel model crash attack fuzz soak)
targets=(rings control frames api zmtp sessions checkpoint holder store)

model() { # each test by itself: together they would share the processors
  local test
  for test in the_switch_does_what_the_model_says the_switches_of_two_hosts_do_what_the_model_says translations_are_what_the_model_says; do
    MODEL_SECONDS=$((MINUTES * 60)) "$CARGO" test --release -p butterfly-datapath --test model -- --exact "$test" --nocapture || return 1
  done
}
ignored() { # by name: others are ignored because they are parts of a test, or want a quiet machine
  local names
  mapfile -t names < <(git ls-files '*.rs' | xargs awk '/#\[ignore = "long/ { found = 1 } found && /fn / { sub(/.*fn /, ""); sub(/\(.*/, ""); print; found = 0 }')
  [ ${#names[@]} -gt 0 ] || { say "no test is marked long"; return 0; }
  say "${names[@]}"
  "$CARGO" test --release --workspace -- --ignored --nocapture "${names[@]}"
}
part() {
  case $1 in
    advisories)
      "$TESTS/lib/setup.sh" lint
      "$TESTS/lib/deny.sh" advisories
      ;;
    ignored) ignored ;;
    workers)
      WORKERS=1 "$TESTS/scenarios.sh"
      WORKERS=4 "$TESTS/scenarios.sh"
      WORKERS=4 "$TESTS/attack/run.sh"
      ;;
    tunnel)
      make guest
      MATRIX=all "$TESTS/tunnel/run.sh" '^ipv[46]-'
      ;;
    model) model ;;
    crash)
      "$TESTS/kill-points/run.sh" --times 10
      "$TESTS/kill-points/run.sh" --inside 10000
      ;;
    attack) "$TESTS/attack/run.sh" $((MINUTES * 60)) ;;
    fuzz) FUZZ_SECONDS=$((MINUTES * 60 / ${#targets[@]})) "$TESTS/fuzz/run.sh" "${targets[@]}" ;;
    soak) MINUTES=$MINUTES "$TESTS/soak/run.sh" && MINUTES=$MINUTES "$TESTS/soak/hosts.sh" ;;
    *) die "no such part: $1" ;;
  esac
}

CARGO=${CARGO:-cargo}
cd "$REPO"
passed=0 failed=0 skipped=0 table=''
for name in "${parts[@]}"; do
  say "==== $name"
  begun=$SECONDS verdict=ok
  # Not in a condition: `set -e` holds inside only then.
  set +e
  (set -e; part "$name") >"$LOGS/$name.log" 2>&1 </dev/null
  status=$?
  set -e
  if [ "$status" -eq 0 ]; then
    passed=$((passed + 1))
  elif [ "$status" -eq 77 ]; then
    skipped=$((skipped + 1)) verdict="skipped: $(tail -1 "$LOGS/$name.log")"
  else
    failed=$((failed + 1)) verdict="FAILED; repeat with: tests/long.sh $name    log: $LOGS/$name.log"
  fi
  tail -3 "$LOGS/$name.log"
  table+=$(printf '%-10s %6d s  %s' "$name" $((SECONDS - begun)) "$verdict")$'\n'
done
say
say "$table"
say "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
