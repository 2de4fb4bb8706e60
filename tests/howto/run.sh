#!/bin/bash
# run.sh [DOCUMENT...]: the how-tos in docs/, carried out: virtual-machines, live-migration, migration, tuning, containers, orchestrator,
# encryption, tracing. Commands, domains and programs are taken from the pages as they stand there; what no test can have (KVM, a gigabyte for each machine, disks) is replaced by what it can, and
# said in the document's script. A block of sh, xml, python, json, yaml, ini or text format that nobody takes fails the test.
# Everything happens in namespaces of its own for mounts, processes and network: /run, /etc/passwd and libvirt's folders are private, and
# nothing is left. Ends with "howto: ok".
set -euo pipefail
# shellcheck source=../lib/common.sh
. "$(dirname "$0")/../lib/common.sh"
HERE=$TESTS/howto

[ "$(id -u)" = 0 ] || die "needs root, for namespaces"
need_programs butterflyd butterfly
"$TESTS/guest/build.sh"
VM_ACCEL=$("$TESTS/guest/accel.sh")
read -r pages </proc/sys/vm/nr_hugepages
dir=$(mktemp -d /tmp/bfly-howto.XXXXXX)
inside='' made=''
cleanup() {
  local status=$?
  trap '' INT TERM HUP
  end "$inside"
  echo "$pages" >/proc/sys/vm/nr_hugepages
  [ -z "$made" ] || rmdir /dev/hugepages
  rm -rf "$dir"
  exit "$status"
}
trap cleanup EXIT
trap 'exit 130' INT TERM HUP
[ -d /dev/hugepages ] || { mkdir /dev/hugepages && made=1; } # as systemd does
export VM_ACCEL VM_DIR=$dir HOWTO_PAGES=$pages
timeout -k 10 800 unshare --mount --net --pid --fork --kill-child --mount-proc "$HERE/inside.sh" "$@" &
inside=$!
wait "$inside"
say "howto: ok"
