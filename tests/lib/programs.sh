# Sourced after common.sh: test programs that cargo built, run without it. All are built at once, for every part, so that crates have the same
# features everywhere and are built once.
# shellcheck shell=bash

CARGO=${CARGO:-cargo}

# build_tests LIST [OPTION...]: builds the test programs of the workspace; LIST gets a line for each: directory's name, directory, program.
build_tests() {
  local list=$1
  shift
  "$CARGO" test --workspace ${CI:+--locked} "$@" --no-run --message-format=json-render-diagnostics >"$list.json"
  python3 -I -S -c '
import json, os, sys
for line in open(sys.argv[1]):
    m = json.loads(line)
    if m["reason"] == "compiler-artifact" and m["profile"]["test"] and m["executable"]:
        home = os.path.dirname(m["manifest_path"])
        print(os.path.basename(home), home, m["executable"])' "$list.json" >"$list"
}

# test_in DIRECTORY PROGRAM ARGUMENTS...: as cargo does it, which has built the daemon and the client with the tests
test_in() {
  say "     Running $2 in $1"
  (cd "$1" && unset CARGO && CARGO_MANIFEST_DIR=$1 exec "${@:2}")
}
