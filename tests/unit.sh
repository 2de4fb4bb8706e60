#!/bin/bash
# unit.sh: unit and property tests, packet walks, the driver side against testpmd, and the session table in every order. What waits
# most of its time (vhost-user front ends that misbehave slowly) and what computes for minutes (loom) run beside the rest.
set -euo pipefail
# shellcheck source=lib/common.sh
. "$(dirname "$0")/lib/common.sh"

cd "$REPO"
CARGO=${CARGO:-cargo}
LOGS=$BUILD/test/unit
mkdir -p "$LOGS"
all=(--workspace --exclude butterfly-tests ${CI:+--locked})
loom=(-p butterfly-datapath --features loom --lib ${CI:+--locked})

# All are built at once, so that crates have the same features everywhere and are built once, and are then run without cargo.
# programs JSON: package, directory and path of each test program that cargo built.
programs() {
  python3 -I -S -c '
import json, os, sys
for line in open(sys.argv[1]):
    m = json.loads(line)
    if m["reason"] == "compiler-artifact" and m["profile"]["test"] and m["executable"]:
        home = os.path.dirname(m["manifest_path"])
        print(os.path.basename(home), home, m["executable"])' "$1"
}
"$CARGO" test "${all[@]}" --no-run --message-format=json-render-diagnostics >"$LOGS/built.json"
programs "$LOGS/built.json" >"$LOGS/programs"
for package in datapath vhost; do grep -q "^$package " "$LOGS/programs" || die "cargo built no test of butterfly-$package"; done
"$CARGO" test "${loom[@]}" --no-run --message-format=json-render-diagnostics >"$LOGS/loom.json"
read -r _ home program < <(programs "$LOGS/loom.json") || die "cargo built no test of butterfly-datapath"

# test_in DIRECTORY PROGRAM ARGUMENTS...: as cargo does it
test_in() {
  say "     Running $2 in $1"
  (cd "$1" && CARGO_MANIFEST_DIR=$1 exec "${@:2}")
}
tests_of() { # tests_of vhost|others: fails if one of them does, after all
  local status=0 package home program
  while read -r package home program; do
    [ "$1" = "$([ "$package" = vhost ] && echo vhost || echo others)" ] || continue
    test_in "$home" "$program" </dev/null || {
      status=1
      say "failed: repeat with: cargo test -p butterfly-$package"
    }
  done <"$LOGS/programs"
  return "$status"
}

beside=()
trap '[ ${#beside[@]} -eq 0 ] || kill "${beside[@]}" 2>/dev/null || true' EXIT
trap 'exit 130' INT TERM HUP
set +e # verdicts are counted, and the functions' own must not end them early
tests_of vhost >"$LOGS/vhost.log" 2>&1 &
beside+=($!)
test_in "$home" nice -n 19 "$program" loom >"$LOGS/loom.log" 2>&1 &
beside+=($!)
failed=0
tests_of others || failed=1
"$CARGO" test "${all[@]}" --doc || failed=1
for log in vhost loom; do
  wait "${beside[0]}" || failed=1
  beside=("${beside[@]:1}")
  cat "$LOGS/$log.log"
done
grep -q '^test result: ok. [1-9]' "$LOGS/loom.log" || failed=1 # a filter that matches nothing is "ok" too
[ "$failed" -eq 0 ]
