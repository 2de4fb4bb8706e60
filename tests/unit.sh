#!/bin/bash
# unit.sh: unit and property tests, packet walks, the simulated guest against testpmd, and the session table in every order. What waits
# most of its time (vhost-user front ends that misbehave slowly) and what computes for minutes (loom) run beside the rest.
set -euo pipefail
given=${BIN:-}
# shellcheck source=lib/common.sh
. "$(dirname "$0")/lib/common.sh"

# shellcheck source=lib/programs.sh
. "$TESTS/lib/programs.sh"

[ -n "$given" ] || unset BIN # daemons are built like the tests, and now
cd "$REPO"
LOGS=$BUILD/test/unit
mkdir -p "$LOGS"

build_tests "$LOGS/programs"
for package in datapath vhost guest-driver; do grep -q "^$package " "$LOGS/programs" || die "cargo built no test of butterfly-$package"; done
# tests_of vhost|bench|others: fails if one of them does, after all. Those of the guest's driver wait, too: they belong to vhost's. Those of the
# bench measure rates beside a testpmd that polls: nothing else runs then.
tests_of() {
  local status=0 package home program kind
  while read -r package home program; do
    [ "$home" != "$TESTS" ] || continue # scenarios have a part of their own
    case $package in vhost | guest-driver) kind=vhost ;; bench) kind=bench ;; *) kind=others ;; esac
    [ "$1" = "$kind" ] || continue
    test_in "$home" "$program" </dev/null || {
      status=1
      say "failed: repeat with: cargo test -p butterfly-$package"
    }
  done <"$LOGS/programs"
  return "$status"
}

loom() { # built beside the tests, too, of which some are about times: nothing else needs cargo meanwhile
  local home program
  renice -n 19 "$BASHPID" >/dev/null
  # A stage of its own, in a build of its own.
  "$CARGO" test --workspace ${CI:+--locked} --features butterfly-datapath/every-second --test every_second >"$LOGS/every_second.log" 2>&1 || { cat "$LOGS/every_second.log"; return 1; }
  # What is built on the data path would be built anew with it, for nothing.
  build_tests "$LOGS/loom" --lib --exclude butterfly-tests --features butterfly-datapath/loom || return 1
  read -r _ home program < <(grep '^datapath ' "$LOGS/loom") || return 1
  test_in "$home" nice -n 19 "$program" loom
}

beside=()
trap '[ ${#beside[@]} -eq 0 ] || kill "${beside[@]}" 2>/dev/null || true' EXIT
trap 'exit 130' INT TERM HUP
set +e # verdicts are counted, and the functions' own must not end them early
tests_of vhost >"$LOGS/vhost.log" 2>&1 &
beside+=($!)
loom >"$LOGS/loom.log" 2>&1 &
beside+=($!)
failed=0
tests_of others || failed=1
"$CARGO" test --workspace ${CI:+--locked} --doc || failed=1
for log in vhost loom; do
  wait "${beside[0]}" || failed=1
  beside=("${beside[@]:1}")
  cat "$LOGS/$log.log"
done
tests_of bench || failed=1
grep -q '^test result: ok. [1-9]' "$LOGS/loom.log" || failed=1 # a filter that matches nothing is "ok" too
[ "$failed" -eq 0 ]
