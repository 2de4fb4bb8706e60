#!/bin/bash
# run.sh: two hosts driven as scripts for butterfly 0.13 drive them: nothing but its commands, options and outputs, the client at its
# default endpoint on one host, four real QEMU guests on the sockets that `nic add` prints. Hosts are network namespaces; the daemon's
# uplink is the TAP device it makes by default, in a bridge with the veth pair between the hosts, or with UPLINK=dpdk-args the veth end that
# --dpdk-args names. Both hosts keep their sockets in one folder. In two minutes; ends with "hosts: ok".
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
. "$TESTS/hosts/lib.sh"
# shellcheck source=cases.sh
. "$TESTS/hosts/cases.sh"

UPLINK=${UPLINK:-tap}
LOGS=$BUILD/test/hosts
need_programs butterflyd butterfly
"$TESTS/guest/build.sh"
VM_ACCEL=$("$TESTS/guest/accel.sh")
export VM_ACCEL

dir=$(mktemp -d /tmp/bfly-hosts.XXXXXX)
export VM_DIR=$dir
finished=''
CASE=booting
cleanup() {
  local status=$? host
  trap '' INT TERM HUP
  if [ -z "$finished" ]; then
    mkdir -p "$LOGS"
    cp "$dir"/*.log "$dir"/*.qemu "$LOGS/" 2>/dev/null || true
    for host in one two; do
      say "host $host:" >&2
      on "$host" daemon_log
      cp "$HOSTS/$host/butterflyd.log" "$LOGS/butterflyd-$host.log" 2>/dev/null || true
    done
    say "hosts: FAILED in $CASE; logs: $LOGS    repeat with: make test-hosts" >&2
  fi
  vm stop --all 2>/dev/null || status=1
  # What -t recorded.
  [ ! -s "$HOSTS/pids" ] || xargs -I '{}' find /tmp -maxdepth 1 -name 'butterfly-{}-*.pcap' -delete <"$HOSTS/pids"
  hosts_end || status=1
  rm -rf "$dir"
  [ -n "$finished" ] || exit $((status ? status : 1))
  [ "$status" -eq 0 ] || die "FAILED while cleaning up"
  say "hosts: ok"
}
trap cleanup EXIT
trap 'exit 130' INT TERM HUP

rm -rf "$LOGS"
hosts_begin "$dir/hosts"
two_hosts
machines
# In this order: each leaves the groups as it found them, every machine in "lan". That allows nothing, and all from "isolation" on.
for CASE in outputs rules ports streams members cumulated addresses isolation reattachment dhcp traced pings restored encrypted ended; do
  begun=$SECONDS
  "$CASE"
  [ -z "${TIMES:-}" ] || say "   $CASE: $((SECONDS - begun)) s"
done
finished=1
