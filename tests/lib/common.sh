# Sourced by the test scripts: messages, waiting with a limit, processes to end, Debian packages unpacked for guests.
# shellcheck shell=bash

TESTS=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
REPO=$(cd "$TESTS/.." && pwd)
BUILD=${BUILD:-$REPO/build}
# Where `make build` leaves the programs; another build can be tested by naming its directory.
BIN=${BIN:-${CARGO_TARGET_DIR:-$REPO/target}/release}
export TESTS REPO BUILD BIN

say() { printf '%s\n' "$*"; }
die() {
  printf '%s: %s\n' "${0##*/}" "$*" >&2
  exit 1
}

# wait_for SECONDS COMMAND...: run COMMAND every 50 ms until it succeeds; fail after SECONDS.
wait_for() {
  local end=$((${EPOCHREALTIME/./} + $1 * 1000000))
  shift
  until "$@"; do
    [ "${EPOCHREALTIME/./}" -lt "$end" ] || return 1
    sleep 0.05
  done
}

# alive PID: is the process there and not a zombie?
alive() {
  local state
  state=$(sed -n 's/^State:\t\(.\).*/\1/p' "/proc/$1/status" 2>/dev/null) && [ -n "$state" ] && [ "$state" != Z ]
}
gone() { ! alive "$1"; }

# end PID...: ask processes to end, then make them. Reaps those that are children of this shell.
end() {
  local pid
  for pid in "$@"; do
    [ -n "$pid" ] || continue
    kill "$pid" 2>/dev/null || continue
    wait_for 5 gone "$pid" || kill -9 "$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null || true
  done
}

# need_programs NAME...: fail with one clear message if something that `make build` leaves is missing.
need_programs() {
  local name
  for name in "$@"; do
    [ -x "$BIN/$name" ] || die "$BIN/$name is missing: run make build first"
  done
}
