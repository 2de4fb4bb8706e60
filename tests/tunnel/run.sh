#!/bin/bash
# run.sh [PATTERN]: networks that span hosts. Hosts are network namespaces on one wire, guests are real; on the other host is our
# daemon too, or the VXLAN device of its kernel. First the matrix (outer family, groups or peers, uplink, far end), then
# scenarios. All of them, or those whose name matches, e.g. '^ipv6-peers-tap-kernel$'. Every transfer is compared by its SHA-256.
# The matrix is eight combinations in which all pairs occur; MATRIX=all: all 28.
set -euo pipefail
# shellcheck source=../lib/common.sh
. "$(dirname "$0")/../lib/common.sh"
# shellcheck source=../lib/daemon.sh
. "$TESTS/lib/daemon.sh"
# shellcheck source=../lib/hosts.sh
. "$TESTS/lib/hosts.sh"
# shellcheck source=../guest/lib.sh
. "$TESTS/guest/lib.sh"
# shellcheck source=lib.sh
. "$TESTS/tunnel/lib.sh"
# shellcheck source=matrix.sh
. "$TESTS/tunnel/matrix.sh"
# shellcheck source=scenarios.sh
. "$TESTS/tunnel/scenarios.sh"

PATTERN=${1:-.}
LOGS=$BUILD/test/tunnel
need_programs butterflyd butterfly
"$TESTS/guest/build.sh"
VM_ACCEL=$("$TESTS/guest/accel.sh")
export VM_ACCEL
mkdir -p "$LOGS"

dir=$(mktemp -d /tmp/bfly-tun.XXXXXX)
export VM_DIR=$dir
cleanup() {
  trap '' INT TERM HUP
  hosts_end || true
  end "$(cat "$dir/boot/daemon.pid" 2>/dev/null || true)"
  vm stop --all 2>/dev/null || true
  rm -rf "$dir"
}
trap cleanup EXIT
trap 'exit 130' INT TERM HUP

fail() {
  say "    FAILED: $*"
  exit 1
}

# link: the emulator of bad links. Set LINK to one that is built already.
link() {
  [ -n "${LINK:-}" ] || (cd "$REPO" && "${CARGO:-cargo}" build --quiet ${CI:+--locked} --bin butterfly-link) || die "butterfly-link cannot be built"
  LINK=${LINK:-${CARGO_TARGET_DIR:-$REPO/target}/debug/butterfly-link}
}

passed=0 failures=() booted=''
run() { # run NAME FUNCTION ARGUMENTS...: each in a subshell: a failure ends the scenario, not the run
  local begun status
  scenario=$1 # global: its subshell's trap needs it
  [[ $scenario =~ $PATTERN ]] || return 0
  if [ -z "$booted" ]; then
    say "booting guests ${GUESTS[*]}"
    boot_guests
    booted=1
  fi
  begun=$SECONDS
  say "$scenario"
  hosts_begin "$dir/hosts"
  set +e # the subshell has its own: behind && or || bash would switch it off inside
  (
    set -e
    # The hosts belong to the scenario, and end with it; guests go on.
    trap 'keep_logs "$scenario"; hosts_end || exit 1' EXIT
    fresh
    "${@:2}"
    all_alive
  )
  status=$?
  set -e
  if [ "$status" -eq 0 ]; then
    passed=$((passed + 1))
    rm -rf "${LOGS:?}/$scenario"
    say "    ok, $((SECONDS - begun)) s"
  else
    failures+=("$scenario")
    # Guests may be in any state now.
    vm stop --all || true
    booted=''
  fi
}
keep_logs() {
  local log
  rm -rf "${LOGS:?}/$1"
  mkdir -p "$LOGS/$1"
  cp "$dir"/*.log "$dir"/*.qemu "$LOGS/$1/" 2>/dev/null || true
  for log in "$HOSTS"/*/*.log; do cp "$log" "$LOGS/$1/$(basename "$(dirname "$log")").${log##*/}" 2>/dev/null || true; done
}
all_alive() {
  local pid
  for pid in "$HOSTS"/*/daemon.pid; do
    [ ! -e "$pid" ] || alive "$(<"$pid")" || fail "the butterflyd of host $(basename "$(dirname "$pid")") is gone"
  done
}

matrix
scenarios

[ $((passed + ${#failures[@]})) -gt 0 ] || die "no scenario matches $PATTERN"
for name in "${failures[@]}"; do
  say "failed: $name    repeat with: MATRIX=all tests/tunnel/run.sh '^$name\$'    logs: $LOGS/$name"
done
say "$passed passed, ${#failures[@]} failed"
[ ${#failures[@]} -eq 0 ]
